"""The masks of a sample: tokens of its attributes and relations, patches of one of its phrases."""

from __future__ import annotations

from textwrap import shorten

import torch
from torch import Tensor

from slipform_training.data import Stream
from slipform_training.macco.crop import Crop, RecordedCrop
from slipform_training.macco.patch_mask import Grid, box_mask, clipped_boxes, random_rectangle
from slipform_training.macco.rows import Concepts
from slipform_training.macco.word_mask import WordFinder

# What is counted of a sample, and what it is.
COUNTED = {
    "words_missing": "words of concepts that their captions do not hold",
    "words_cut": "words of concepts beyond the context length",
    "no_words": "captions without a masked word",
    "no_boxes": "images without a phrase that has boxes",
    "beside_crop": "phrases whose boxes lie beside the crop",
}


class ConceptMasks:
    """Masks of the concepts of samples (arXiv 2606.13288).

    Args:
        crop: the transform of the images.
        words: finds words in captions.
        grid: patches of the model.
        random_masks: the paper's ablation: masks of the same size at random places.
        random_probability: how often a random rectangle takes the place of a phrase's patches.

    Raises:
        ValueError: the crop gives images of another size than the grid's.
    """

    def __init__(
        self,
        crop: RecordedCrop,
        words: WordFinder,
        grid: Grid,
        *,
        random_masks: bool = False,
        random_probability: float = 0.1,
    ) -> None:
        if crop.size != (grid.height, grid.width):
            raise ValueError(f"crop: got size {crop.size}, expected {(grid.height, grid.width)}")
        self.crop = crop
        self._words, self._grid = words, grid
        self._random_masks, self._random_probability = random_masks, random_probability

    def of(
        self, caption: str, concepts: Concepts, part: Crop, draw: Stream
    ) -> tuple[dict[str, Tensor], list[tuple[str, str]]]:
        """The masks of a sample.

        Args:
            caption: the text.
            concepts: of the caption.
            part: of the image that the model sees.
            draw: the random numbers.

        Returns:
            "word_mask", bool [L], "patch_mask", bool [P], and COUNTED, int64 []; and examples of
            what was counted: its name there, and a text.

        Raises:
            ValueError: a box that is none, or lies outside of the image.
        """
        found = self._words.mask(caption, concepts)
        word_mask = found.mask
        if self._random_masks:
            word_mask = self._words.random_mask(caption, int(word_mask.sum()), draw)
        patch_mask, counts = self._patches(concepts, part, draw)
        counts["words_missing"], counts["words_cut"] = len(found.missing), len(found.cut)
        counts["no_words"] = int(not word_mask.any())
        tensors = {name: torch.tensor(counts.get(name, 0)) for name in COUNTED}
        shown = shorten(caption, 100, placeholder=" ...")
        examples = [("words_missing", f"{word!r} in {shown!r}") for word in found.missing]
        examples += [("words_cut", f"{word!r} of {shown!r}") for word in found.cut]
        return {"word_mask": word_mask, "patch_mask": patch_mask, **tensors}, examples

    def _patches(
        self, concepts: Concepts, part: Crop, draw: Stream
    ) -> tuple[Tensor, dict[str, int]]:
        boxed = [clipped_boxes(one.boxes, part) for one in concepts.phrases if one.boxes]
        counts = {"no_boxes": int(not boxed)}
        # Drawn for every sample, so that all its other draws are the same with any probability.
        rectangle, choice = draw.chance(self._random_probability), draw.uniform()
        if rectangle:
            return random_rectangle(self._grid, draw), counts
        if not boxed:
            return torch.zeros(self._grid.rows * self._grid.cols, dtype=torch.bool), counts
        mask = box_mask(boxed[int(choice * len(boxed))], part, self._grid)
        covered = int(mask.sum())
        counts["beside_crop"] = int(not covered)
        if self._random_masks and covered:
            mask = random_rectangle(self._grid, draw, patches=covered)
        return mask, counts
