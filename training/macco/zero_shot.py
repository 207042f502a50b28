"""Boxes from a zero-shot detector of transformers, such as Grounding DINO or OWLv2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from slipform_training.macco.boxes import Box
from slipform_training.macco.rows import Phrase
from slipform_training.mining.rows import InputError

# These encode each text by itself, and need all of one length; the others pad a batch's together.
_PADDING = {"owlvit": "max_length", "owlv2": "max_length"}


class ZeroShotDetector:
    """A Detector that asks a model for one phrase of one image at a time, in batches.

    A phrase's boxes are all that score above the threshold, whichever of its words they are for.

    Args:
        model: a name on the Hugging Face hub, or a folder.
        images: folder that relative paths of images begin at.
        device: "auto", or a torch device.
        threshold: lowest score of a box, 0 to 1.
        batch_size: phrases at once.

    Raises:
        ValueError: an argument out of range.
        RuntimeError: transformers is missing, or has no such detector.
    """

    def __init__(
        self,
        model: str,
        *,
        images: Path,
        device: str = "auto",
        threshold: float = 0.3,
        batch_size: int = 8,
    ) -> None:
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold: got {threshold}, expected 0 or more, below 1")
        if batch_size < 1:
            raise ValueError(f"batch_size: got {batch_size}, expected at least 1")
        self._images, self._threshold, self._batch_size = images, threshold, batch_size
        self._processor, self._model = _load(model, device)

    def detect(
        self, images: Sequence[str], phrases: Sequence[Sequence[Phrase]]
    ) -> Iterator[list[list[Box]] | str]:
        """See Detector."""
        pairs = [
            (image, one.text)
            for image, wanted in zip(images, phrases, strict=True)
            for one in wanted
        ]
        found: list[list[Box]] = []
        for wanted in phrases:
            while len(found) < len(wanted):
                found += self._batch(pairs[: self._batch_size])
                del pairs[: self._batch_size]
            yield found[: len(wanted)]
            del found[: len(wanted)]

    def _batch(self, pairs: Sequence[tuple[str, str]]) -> list[list[Box]]:
        import torch

        opened = {name: self._open(name) for name in dict.fromkeys(name for name, _ in pairs)}
        pictures = [opened[name] for name, _ in pairs]
        texts = [[text] for _, text in pairs]
        inputs = self._processor(
            images=pictures,
            text=texts,
            return_tensors="pt",
            padding=_PADDING.get(self._model.config.model_type, True),
            truncation=True,
        ).to(self._model.device)
        with torch.inference_mode():
            outputs = self._model(**inputs)
        sizes = [(picture.height, picture.width) for picture in pictures]
        results = self._processor.post_process_grounded_object_detection(
            outputs, threshold=self._threshold, target_sizes=sizes, text_labels=texts
        )
        return [
            _boxes(result, picture.width, picture.height)
            for result, picture in zip(results, pictures, strict=True)
        ]

    def _open(self, name: str) -> Any:
        from slipform_training.train.images import load_image
        from slipform_training.train.samples import SampleError

        try:
            return load_image(self._images / name)
        except SampleError as error:
            raise InputError(str(error)) from error


def _boxes(result: Any, width: int, height: int) -> list[Box]:
    """A result's boxes, clipped to the image; what lies outside is left out."""
    found = []
    for box, score in zip(result["boxes"].tolist(), result["scores"].tolist(), strict=True):
        x1, x2 = (min(max(value, 0.0), float(width)) for value in box[::2])
        y1, y2 = (min(max(value, 0.0), float(height)) for value in box[1::2])
        if x1 < x2 and y1 < y2:
            found.append(Box(x1, y1, x2, y2, score))
    return found


def _load(model: str, device: str) -> tuple[Any, Any]:
    try:
        from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor
    except ImportError as error:
        raise RuntimeError(
            "the package transformers is missing; install slipform-kernels[boxes]"
        ) from error
    from slipform_training.train.model import select_device

    try:
        processor = AutoProcessor.from_pretrained(model)
        detector = AutoModelForZeroShotObjectDetection.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        raise RuntimeError(f"detector: {model} cannot be loaded: {error}") from error
    if not hasattr(processor, "post_process_grounded_object_detection"):
        raise RuntimeError(f"detector: {model} has no processor that gives boxes")
    return processor, detector.eval().to(select_device(device))
