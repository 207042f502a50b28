"""What a run that makes hard images is asked to do."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL = "stabilityai/sdxl-turbo"
ENDINGS = (".jsonl", ".tsv", ".tar")
PRECISIONS = ("auto", "fp32", "fp16", "bf16")


@dataclass(frozen=True, kw_only=True)
class HardImageSettings:
    """Options of a run; see `slipform hard-images --help`.

    Attributes:
        inputs: mined rows (.jsonl, NegCLIP's .tsv, webdataset's .tar), or folders of tar files.
        out: folder for the images and the rows with "hard_images".
        images: folder that the rows' paths of images begin at; tar files bring their own.
        model: name or folder of an image-to-image pipeline of diffusers.
        variant: of the model's weight files, such as "fp16"; None: those without a variant.
        strength: share of the diffusion that is undone and done anew, above 0, at most 1.
        steps: of the whole diffusion, of which int(strength * steps) are done.
        guidance: weight of the caption; up to 1 none, as distilled models want.
        size: side of the images in pixels, a multiple of 8.
        batch_size: images made at once.
        seed: of the noise, together with a row's id.
        device: "auto" or a torch device.
        precision: "auto" is fp16 on a GPU and fp32 elsewhere.
        on_error: "raise" or "skip", for a row whose image cannot be used.
        shard: (i, n): the i-th of n parts of the rows, from 0.

    Raises:
        ValueError: an option out of range.
    """

    inputs: tuple[Path, ...]
    out: Path
    images: Path = Path()
    model: str = MODEL
    variant: str | None = None
    strength: float = 0.5
    steps: int = 4
    guidance: float = 0.0
    size: int = 512
    batch_size: int = 8
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"
    on_error: str = "raise"
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        done = int(self.strength * self.steps) if math.isfinite(self.strength) else 0
        rules = (
            ("inputs", bool(self.inputs), "at least one file"),
            ("strength", 0 < self.strength <= 1, "above 0, at most 1"),
            ("steps", self.steps >= 1, "at least 1"),
            ("guidance", 0 <= self.guidance < math.inf, "at least 0"),
            ("size", self.size >= 8 and self.size % 8 == 0, "a multiple of 8"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}"),
            ("on_error", self.on_error in ("raise", "skip"), "raise or skip"),
            ("shard", 0 <= self.shard[0] < self.shard[1], "i/n with 0 <= i < n"),
        )
        for name, valid, expected in rules:
            if not valid:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected {expected}")
        if done < 1:
            raise ValueError(
                f"steps: got {self.steps} with strength {self.strength}, of which "
                f"int(strength * steps) = {done} would be done, expected at least "
                f"{math.ceil(1 / self.strength)}"
            )

    def files(self) -> list[Path]:
        """The input files, folders replaced by their tar files.

        Raises:
            ValueError: a name that tells no format or occurs twice, no file, or one in `out`.
        """
        found: list[Path] = []
        for path in self.inputs:
            inside = sorted(path.glob("*.tar")) if path.is_dir() else [path]
            if not inside:
                raise ValueError(f"inputs: got {path}, expected a file or a folder of tar files")
            found += inside
        for path in found:
            if path.suffix not in ENDINGS:
                raise ValueError(f"inputs: got {path}, expected a name in {', '.join(ENDINGS)}")
            if path.resolve().parent == self.out.resolve():
                raise ValueError(f"out: got {self.out}, where the input {path} is")
        name, count = Counter(path.name for path in found).most_common(1)[0]
        if count > 1:
            raise ValueError(f"inputs: got {count} files named {name}, expected different names")
        return found

    def out_file(self, path: Path) -> Path:
        """Where the rows of an input file go."""
        i, n = self.shard
        part = f".{i}-of-{n}" if n > 1 else ""
        return self.out / f"{path.stem}{part}{path.suffix}"

    def beside(self, name: str) -> Path:
        """A path of this run's own in the folder, named after its first output."""
        first = self.out_file(self.files()[0])
        return first.with_name(f"{first.name}.{name}")

    def request(self) -> dict[str, Any]:
        """What the images depend on, as json."""
        names = ("model", "variant", "strength", "steps", "guidance", "size", "seed", "precision")
        return {name: getattr(self, name) for name in names}
