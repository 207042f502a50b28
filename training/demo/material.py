"""What the demo trains and tests on: scenes, captions, mined hard captions, test pairs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipform_training.concreteplant import ConcretePlant, HardCaption, MinerOptions
from slipform_training.data import ReducedTokenizer, Stream
from slipform_training.finetune import Batch
from slipform_training.scenes import (
    Scene,
    SceneConfig,
    ScenePair,
    Scenes,
    build_pairs,
    normalise,
    pair_images,
    shuffle_words,
)

from .config import MINED_FILE, DemoConfig

# No sizes in the captions: in this time none of the branches learns them, which hides the rest.
SCENES = SceneConfig(relations=("left", "above"), size_share=0.0)
# A vision transformer needs more pictures of a noun than the 8,192 scenes have of all 64.
_VIT_SCENES = replace(SCENES, nouns=SCENES.nouns[::4])
# A scene's captions have few rated words, so k reaches beyond the nouns. A swapped and a replaced
# one each: with one of them at random, the swaps are learnt at half the speed.
MINING = MinerOptions(k=6, min_concreteness=3.0, tolerance=0.3, rewriters=("swap", "replace"))
TEST_SEED = 0

Gather = Callable[[NDArray[np.int64], int], Batch]


@dataclass(frozen=True)
class Material:
    """M training scenes, each with up to K mined hard captions, and the test pairs.

    images: uint8 [M, 3, R, R]. captions: M texts. hard: M tuples. texts: int64 [M, L].
    hard_texts: int64 [M, K, L], zeros where absent. concreteness: fp32 [M, K], 1 to 5.
    hard_counts: int64 [M], how many hard captions a scene has (its first ones).
    pairs: the held-out test pairs; pair_pictures: uint8 [R, R, 3] by a pair's file name.
    scenes: the M training scenes. mining: what the miner found, a line each.
    """

    images: Tensor
    captions: list[str]
    hard: list[tuple[HardCaption, ...]]
    tokenizer: ReducedTokenizer
    texts: Tensor
    hard_texts: Tensor
    concreteness: Tensor
    hard_counts: Tensor
    pairs: list[ScenePair]
    pair_pictures: dict[str, NDArray[np.uint8]]
    scenes: list[Scene]
    mining: str

    def mined(self, options: MinerOptions, path: Path, *, say: Callable[[str], None]) -> Material:
        """The same scenes with hard captions mined otherwise, kept in the file `path`."""
        hard, mining = _mined(self.captions, path, options, say=say)
        texts, concreteness, counts = _hard_arrays(hard, self.tokenizer, options)
        return replace(
            self,
            hard=hard,
            hard_texts=texts,
            concreteness=concreteness,
            hard_counts=counts,
            mining=mining,
        )

    def bag_gather(self, seed: int) -> Gather:
        """Stage 1's batches: the captions' words in a new random order each time."""

        def gather(indices: NDArray[np.int64], step: int) -> Batch:
            shuffle = Stream("order of words", seed, step).below(2**31)
            texts = [
                shuffle_words(self.captions[index], seed=shuffle, index=index)
                for index in indices.tolist()
            ]
            return Batch(images=self._pixels(indices), texts=self.tokenizer(texts))

        return gather

    def branch_gather(self) -> Gather:
        """Stage 2's batches: the real captions, and all of each scene's hard captions."""
        places = torch.arange(self.hard_texts.shape[1])

        def gather(indices: NDArray[np.int64], _step: int) -> Batch:
            rows = torch.from_numpy(indices)
            return Batch(
                images=self._pixels(indices),
                texts=self.texts[rows],
                hard_texts=self.hard_texts[rows],
                concreteness=self.concreteness[rows],
                hard_mask=places < self.hard_counts[rows].unsqueeze(1),
            )

        return gather

    def _pixels(self, indices: NDArray[np.int64]) -> Tensor:
        pixels = normalise(self.images[torch.from_numpy(indices)])
        return pixels.contiguous(memory_format=torch.channels_last)


def scene_config(config: DemoConfig) -> SceneConfig:
    """The scenes that a demo's image tower is trained on."""
    return _VIT_SCENES if config.image_tower == "vit" else SCENES


def prepare(config: DemoConfig, out_dir: Path, *, say: Callable[[str], None]) -> Material:
    """Compose the scenes, mine their hard captions (kept in out_dir), build the test pairs."""
    scenes = Scenes(scene_config(config))
    drawn = scenes.batch(range(config.scenes))
    say(f"composed {config.scenes} training scenes")
    hard, mining = _mined(drawn.captions, out_dir / MINED_FILE, MINING, say=say)
    pairs = build_pairs(scenes, per_category=config.pairs_per_category, seed=TEST_SEED)
    load = pair_images(pairs, scenes)
    say(f"built {len(pairs)} test pairs of combinations that training never shows")
    texts = [*drawn.captions, *(one.hard_caption for row in hard for one in row)]
    for pair in pairs:
        texts += [pair.caption, pair.negative_caption]
    vocabulary = scenes.vocabulary()
    context_length = ReducedTokenizer(vocabulary).longest(texts)
    tokenizer = ReducedTokenizer(vocabulary, context_length=context_length)
    hard_texts, concreteness, counts = _hard_arrays(hard, tokenizer, MINING)
    return Material(
        images=drawn.tensor(),
        captions=drawn.captions,
        hard=hard,
        tokenizer=tokenizer,
        texts=tokenizer(drawn.captions),
        hard_texts=hard_texts,
        concreteness=concreteness,
        hard_counts=counts,
        pairs=pairs,
        pair_pictures={pair.filename: load(pair.filename) for pair in pairs},
        scenes=drawn.scenes,
        mining=mining,
    )


def _mined(
    captions: Sequence[str], path: Path, options: MinerOptions, *, say: Callable[[str], None]
) -> tuple[list[tuple[HardCaption, ...]], str]:
    if path.exists():
        stored = json.loads(path.read_text())
        say(f"read the mined hard captions from {path}")
        found = [tuple(HardCaption(**one) for one in row) for row in stored["hard"]]
        return found, stored["report"]
    say("mining hard captions ...")
    mining = ConcretePlant(options).mine(captions)
    report = mining.report()
    say(report)
    temporary = path.with_name(path.name + ".tmp")
    rows = [[asdict(one) for one in row] for row in mining.hard]
    temporary.write_text(json.dumps({"report": report, "hard": rows}))
    os.replace(temporary, path)
    return mining.hard, report


def _hard_arrays(
    hard: Sequence[Sequence[HardCaption]], tokenizer: ReducedTokenizer, options: MinerOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids [M, K, L], concreteness [M, K] (1 where absent) and counts [M]."""
    choices = len(options.rewriters)
    tokens = torch.zeros(len(hard), choices, tokenizer.context_length, dtype=torch.int64)
    # An absent hard caption is masked, but still goes through the text tower: an empty text.
    tokens[:] = tokenizer("")
    concreteness = torch.ones(len(hard), choices)
    for row, found in enumerate(hard):
        if found:
            tokens[row, : len(found)] = tokenizer([one.hard_caption for one in found])
            concreteness[row, : len(found)] = torch.tensor([one.concreteness for one in found])
    return tokens, concreteness, torch.tensor([len(found) for found in hard])
