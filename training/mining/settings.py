"""What a mining run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipform_training.concreteplant.llm import LlmOptions
from slipform_training.concreteplant.miner import TARGETS
from slipform_training.mining.readers import Columns, format_of
from slipform_training.mining.tagging import Tagger

REWRITERS = ("corpus", "wordnet", "llm")
OUT_FORMATS = ("jsonl", "tsv", "shards")


@dataclass(frozen=True, kw_only=True)
class MiningSettings:
    """Options of a run; see `slipform mine --help`.

    Attributes:
        inputs: caption files.
        out: a .jsonl or .tsv file, or a folder for shards.
        out_format: "jsonl", "tsv" or "shards"; None: what the name of `out` tells.
        columns: names of the inputs' columns.
        images: folder of the images, to put them into shards.
        rewriter: "corpus", "wordnet" or "llm".
        hard: hard captions wanted of each caption.
        k, min_concreteness, tolerance, targets, seed: as of the miner.
        tagger: pipeline and ratings.
        wordnet: folder of a WordNet 3.0 database.
        inventory: the corpus's words; None: beside the output.
        inventory_rows: rows of the input that the inventory is made of, from its start.
        shard: (i, n): the i-th of n parts, from 0.
        shard_rows: samples a tar file.
        llm: options of the endpoint.

    Raises:
        ValueError: an option out of range.
    """

    inputs: tuple[Path, ...]
    out: Path
    out_format: str | None = None
    columns: Columns = field(default_factory=Columns)
    images: Path | None = None
    rewriter: str = "corpus"
    hard: int = 1
    k: int = 3
    min_concreteness: float = 1.0
    tolerance: float = 0.5
    targets: str = "high"
    seed: int = 0
    tagger: Tagger = field(default_factory=Tagger)
    wordnet: Path | None = None
    inventory: Path | None = None
    inventory_rows: int = 100_000
    shard: tuple[int, int] = (0, 1)
    shard_rows: int = 2048
    llm: LlmOptions | None = None

    def __post_init__(self) -> None:
        for name in ("hard", "k", "inventory_rows", "shard_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if not 1.0 <= self.min_concreteness <= 5.0:
            raise ValueError(f"min_concreteness: got {self.min_concreteness}, expected 1 to 5")
        if not self.tolerance >= 0.0:
            raise ValueError(f"tolerance: got {self.tolerance}, expected at least 0")
        if self.targets not in TARGETS:
            raise ValueError(f"targets: got {self.targets!r}, expected one of {TARGETS}")
        if self.rewriter not in REWRITERS:
            raise ValueError(f"rewriter: got {self.rewriter!r}, expected one of {REWRITERS}")
        if self.rewriter == "wordnet" and self.wordnet is None:
            raise ValueError("wordnet: got no folder, expected one for the rewriter wordnet")
        if self.rewriter == "llm" and self.llm is None:
            raise ValueError("llm_url: got none, expected one for the rewriter llm")
        if not self.inputs:
            raise ValueError("inputs: got none, expected at least one file")
        for path in self.inputs:
            format_of(path)
            if self.out.resolve() in (path.resolve(), path.resolve().parent) and (
                self.format == "shards" or path.resolve() == self.out.resolve()
            ):
                raise ValueError(f"out: got {self.out}, where the input {path} is")
        i, n = self.shard
        if not 0 <= i < n:
            raise ValueError(f"shard: got {i}/{n}, expected i/n with 0 <= i < n")
        if self.format not in OUT_FORMATS:
            raise ValueError(f"out_format: got {self.format!r}, expected one of {OUT_FORMATS}")

    @property
    def format(self) -> str:
        """The format of the output."""
        if self.out_format is not None:
            return self.out_format
        return {".jsonl": "jsonl", ".tsv": "tsv", "": "shards"}.get(
            self.out.suffix.lower(), f"unknown, from the name {self.out.name}"
        )

    @property
    def part(self) -> str:
        """What tells this part's files from those of the others; "" if there is but one."""
        i, n = self.shard
        return f"{i}-of-{n}" if n > 1 else ""

    def beside(self, name: str, *, part: bool = True) -> Path:
        """A path beside the output's."""
        own = f".{self.part}" if part and self.part else ""
        return self.out.with_name(f"{self.out.name}{own}.{name}")

    @property
    def out_file(self) -> Path:
        """The output of this part: the file, or the folder."""
        if self.format == "shards" or not self.part:
            return self.out
        return self.out.with_name(f"{self.out.stem}.{self.part}{self.out.suffix}")

    def mined_files(self) -> list[Path]:
        """The files of this part's output, tar files as far as they are there."""
        if self.format != "shards":
            return [self.out_file]
        prefix = f"{self.part}-" if self.part else "[0-9]"
        return sorted(
            path for path in self.out.glob(f"{prefix}*.tar") if self.part or "-" not in path.name
        )

    @property
    def inventory_file(self) -> Path:
        """Where the corpus's words are kept; the same for all parts."""
        return self.inventory or self.beside("inventory.json", part=False)

    def source(self) -> dict[str, Any]:
        """What the inventory depends on, as json."""
        return {
            "inputs": [[path.as_posix(), path.stat().st_size] for path in self.inputs],
            "columns": [self.columns.caption, self.columns.image, self.columns.id],
            "model": self.tagger.model,
            "lexicon": _name(self.tagger.lexicon),
            "inventory_rows": self.inventory_rows,
        }

    def request(self) -> dict[str, Any]:
        """What the output depends on, as json."""
        return {
            **self.source(),
            "format": self.format,
            "images": _name(self.images),
            "rewriter": self.rewriter,
            "hard": self.hard,
            "k": self.k,
            "min_concreteness": self.min_concreteness,
            "tolerance": self.tolerance,
            "targets": self.targets,
            "seed": self.seed,
            "wordnet": _name(self.wordnet),
            "inventory": _name(self.inventory),
            "shard": list(self.shard),
            "shard_rows": self.shard_rows,
            "llm": None if self.llm is None else self.llm.request(),
        }


def _name(path: Path | None) -> str | None:
    return None if path is None else path.as_posix()
