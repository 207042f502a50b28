"""How fast is `slipform mine`, beside spaCy alone on the same captions in the same run?

    python -m benchmarks.mine_throughput FILE [--rounds 3] [--workers 1 2] [--wordnet DIR]

The floor is bare: spaCy's small pipeline without ner, `nlp.pipe` over the captions and nothing
else. A run of the miner is timed whole, with reading, both passes and writing, in this process;
models are loaded before. Reported are ratios, bare's time to the miner's: 1 is as fast as bare.
Rounds alternate, and medians are taken. Real captions: NegCLIP's valid_neg_clip.tsv.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import spacy

from benchmarks import record
from slipform_training.concreteplant.anchors import PIPELINE
from slipform_training.mining import MiningSettings, Tagger, mine, read_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="captions, as of slipform mine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1], help="at most; few captions start none"
    )
    parser.add_argument("--wordnet", type=Path)
    arguments = parser.parse_args()

    captions = [row.caption or "" for row in read_rows([arguments.file])]
    bare = spacy.load(PIPELINE, exclude=["ner"])
    Tagger().load()
    times: dict[str, list[float]] = {}
    mined = 0
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        for _ in bare.pipe(captions, batch_size=256):
            pass
        times.setdefault("bare", []).append(time.perf_counter() - start)
        for workers in arguments.workers:
            with tempfile.TemporaryDirectory() as folder:
                settings = MiningSettings(
                    inputs=(arguments.file,),
                    out=Path(folder) / "out.jsonl",
                    wordnet=arguments.wordnet,
                )
                start = time.perf_counter()
                report = mine(settings, workers=workers)
                mined = report.mined
                name = f"{report.workers} workers" if report.workers > 1 else "1 process"
                times.setdefault(name, []).append(time.perf_counter() - start)
    median = {name: statistics.median(values) for name, values in times.items()}
    record.save(
        "mine_throughput",
        [
            {
                "captions": len(captions),
                "mined %": 100 * mined / len(captions),
                "run": name,
                "times bare's speed": median["bare"] / seconds,
                "captions/s": round(len(captions) / seconds),
            }
            for name, seconds in median.items()
        ],
    )


if __name__ == "__main__":
    main()
