"""Features of an image tower, before or after its projection into the joint space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from slipform_training.train.images import load_image
from slipform_training.train.samples import SampleError


@dataclass(frozen=True)
class TowerFeatures:
    """features: fp32 [n, D] on the CPU, of the images in `kept` (numbers); the others failed."""

    features: Tensor
    kept: list[int]
    failures: list[SampleError]


@torch.no_grad()
def tower_features(
    model: nn.Module,
    paths: Sequence[Path],
    *,
    prepare: Callable[[Any], Tensor],
    projected: bool,
    device: str = "cpu",
    batch_size: int = 64,
    workers: int = 0,
    skip: bool = False,
    progress: Callable[[int], None] = lambda images: None,
) -> TowerFeatures:
    """Image features of an open_clip model, which is put into eval mode and onto `device`.

    Args:
        projected: True: `encode_image`, unit norm, as the model compares them; False: before the
            projection, as the tower gives them (see `without_projection`).
        prepare: PIL image -> [3, H, W], the model's transform for evaluation.
        skip: leave out images that are missing or cannot be read; else the first one is raised.

    Raises:
        SampleError: without `skip`.
        ValueError: no image could be read; a tower whose projection is not known.
    """
    model.eval().to(device)
    loader = DataLoader(
        _Images(paths, prepare), batch_size=batch_size, num_workers=workers, collate_fn=list
    )
    features: list[Tensor] = []
    kept: list[int] = []
    failures: list[SampleError] = []
    for batch in loader:
        for _, found in batch:
            if isinstance(found, SampleError):
                if not skip:
                    raise found
                failures.append(found)
        read = [(number, found) for number, found in batch if isinstance(found, Tensor)]
        if read:
            kept += [number for number, _ in read]
            pixels = torch.stack([found for _, found in read]).to(device)
            features.append(_encode(model, pixels, projected).float().cpu())
        progress(len(batch))
    if not features:
        raise ValueError(f"paths: none of {len(paths)} images could be read; {failures[:1]}")
    return TowerFeatures(torch.cat(features), kept, failures)


class _Images(Dataset[tuple[int, Any]]):
    """Number and pixels, or the error: exceptions from workers would lose what they say."""

    def __init__(self, paths: Sequence[Path], prepare: Callable[[Any], Tensor]) -> None:
        self._paths, self._prepare = paths, prepare

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        try:
            return number, self._prepare(load_image(self._paths[number]))
        except SampleError as error:
            return number, error


def _encode(model: Any, pixels: Tensor, projected: bool) -> Tensor:
    if projected:
        return model.encode_image(pixels, normalize=True)
    with without_projection(model.visual):
        return model.encode_image(pixels, normalize=False)


@contextmanager
def without_projection(visual: Any) -> Iterator[None]:
    """While it lasts, open_clip's image tower `visual` gives what it would project.

    A VisionTransformer's `proj` is taken away, which its forward allows; of a ModifiedResNet's
    attention pooling the output layer `c_proj` becomes the identity; of a timm tower's head the
    linear or MLP projection does. These are the features I_f of CLIP's figure 3 (arXiv 2103.00020),
    which its linear probes use.

    Raises:
        ValueError: another tower, or one without a projection of its own.
    """
    owner, name, stand_in = _projection(visual)
    own = getattr(owner, name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        setattr(owner, name, own)


def _projection(visual: Any) -> tuple[Any, str, Any]:
    """Who holds the projection, under which name, and what stands in for it."""
    if getattr(visual, "proj", None) is not None:
        return visual, "proj", None
    pool = getattr(visual, "attnpool", None)
    if pool is not None and hasattr(pool, "c_proj"):
        width, like = pool.c_proj.in_features, pool.c_proj.weight
        identity = nn.Linear(width, width, device=like.device, dtype=like.dtype)
        nn.init.eye_(identity.weight)
        nn.init.zeros_(identity.bias)
        return pool, "c_proj", identity
    head = getattr(visual, "head", None)
    for name in ("proj", "mlp"):
        if hasattr(visual, "trunk") and hasattr(head, name):
            return head, name, nn.Identity()
    raise ValueError(
        f"projected: got False for the image tower {type(visual).__name__}, whose projection is "
        "not known here; expected True"
    )
