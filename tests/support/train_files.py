"""Small files for training: a model's configuration, images, captions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TINY = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {
        "image_size": 32,
        "layers": 1,
        "width": 32,
        "head_width": 16,
        "patch_size": 16,
    },
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
NAME = "tiny-slipform-quickgelu"


def tiny_model(folder: Path, name: str = NAME, **changes: Any) -> str:
    """A json file with the configuration of a tiny model that uses QuickGELU."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**TINY, **changes}))
    return str(path)


def draw_image(path: Path, seed: int, size: tuple[int, int] = (40, 36)) -> None:
    """A jpeg of smooth colours, other ones for every seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(values).resize(size, Image.Resampling.BILINEAR).save(path, quality=95)


def mined_rows(folder: Path, count: int) -> list[dict[str, Any]]:
    """Rows of a mined jsonl, with images beside it; every fourth has no hard caption."""
    rows = []
    for number in range(count):
        name = f"pictures/{number}.jpg"
        draw_image(folder / name, number)
        row: dict[str, Any] = {
            "id": str(number),
            "image": name,
            "caption": f"a photo of object number {number}",
            "hard_captions": [f"a photo of thing number {number}", f"a photo of item {number}"],
            "concreteness": [3.5, 4.5],
        }
        if number % 4 == 3:
            row.update(hard_captions=[], concreteness=[], reason="no candidate")
        rows.append(row)
    return rows


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
