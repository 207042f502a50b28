"""How fast is `slipform mine`, beside spaCy alone on the same captions in the same rounds?

    python -m pytest benchmarks/test_mining.py --captions valid_neg_clip.tsv [--rounds 5]

The floor is bare: spaCy's small pipeline without ner, `nlp.pipe` over the captions and nothing
else. A run of the miner is timed whole, with reading, both passes and writing, in this process;
models are loaded before. `bare_ratio` is bare's time over the miner's: 1 is as fast as bare. Real
captions: NegCLIP's valid_neg_clip.tsv.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paired import Pairing, median_ratio, ratio_iqr

spacy = pytest.importorskip("spacy", reason='needs pip install "slipform-kernels[train]"')

from slipform_training.concreteplant.anchors import PIPELINE  # noqa: E402
from slipform_training.mining import MiningSettings, Tagger, mine, read_rows  # noqa: E402

QUESTION = "mining"


class Bare:
    """spaCy's tagging of the captions."""

    def __init__(self, captions: list[str]):
        self.captions = captions
        self.pipeline = spacy.load(PIPELINE, exclude=["ner"])

    def prepare(self) -> None:
        pass

    def run(self) -> None:
        for _ in self.pipeline.pipe(self.captions, batch_size=256):
            pass

    def release(self) -> None:
        pass


class Miner:
    """A whole run, into a new folder each time."""

    def __init__(self, captions: Path, folder: Path):
        self.captions, self.folder = captions, folder
        self.runs = self.mined = 0
        Tagger().load()

    def prepare(self) -> None:
        self.runs += 1
        out = self.folder / str(self.runs)
        out.mkdir()
        self.settings = MiningSettings(inputs=(self.captions,), out=out / "out.jsonl")

    def run(self) -> None:
        self.mined = mine(self.settings, workers=1).mined

    def release(self) -> None:
        pass


def test_mining(benchmark: Any, settings: Any, save_row: Any, tmp_path: Path) -> None:
    if settings.captions is None:
        pytest.skip("needs --captions FILE")
    captions = [row.caption or "" for row in read_rows([settings.captions])]
    miner = Miner(settings.captions, tmp_path)
    pairing = Pairing(miner, {"bare": Bare(captions)})
    seconds = pairing.measure(benchmark, settings.rounds)
    save_row(
        captions=len(captions),
        mined_share=miner.mined / len(captions),
        seconds=statistics.median(seconds),
        bare_ratio=median_ratio(pairing.times["bare"], seconds),
        bare_ratio_iqr=ratio_iqr(pairing.times["bare"], seconds),
        rounds=len(seconds),
    )
