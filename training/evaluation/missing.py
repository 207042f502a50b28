"""Which of a suite's images are there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from slipform_training.evaluation.encoder import (
    FeatureSource,
    ImageItem,
    UnreadableImagesError,
)
from slipform_training.evaluation.suites import ImageRef, ImageRoots

POLICIES = ("skip", "error")


class MissingImagesError(ValueError):
    """Images that are not there, or cannot be read, and may not be skipped; or none is there."""


@dataclass(frozen=True)
class FoundImages:
    """The features [n, D] of the images that could be had, the place of each, and the rest.

    missing: names of files that are not there. unreadable: reasons by name. Both sorted.
    """

    features: Tensor
    place: dict[ImageRef, int]
    missing: tuple[str, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)


def find_images(
    images: Iterable[ImageRef], roots: ImageRoots, source: FeatureSource, *, policy: str, who: str
) -> FoundImages:
    """The features of a suite's images.

    Args:
        images: what the items need; each is encoded once.
        roots: where they are.
        source: encodes them.
        policy: "skip" reports what is missing or unreadable; "error" stops there.
        who: the suite, for messages.

    Raises:
        MissingImagesError: by policy, or where no image at all can be used.
    """
    wanted = list(dict.fromkeys(images))
    files: dict[ImageRef, ImageItem] = {}
    seen: dict[ImageRef, ImageItem | None] = {}
    for image in wanted:
        whole = image._replace(box=None)
        if whole not in seen:
            candidates = roots.candidates(whole)
            seen[whole] = next((item for item in candidates if item.path.is_file()), None)
        found = seen[whole]
        if found is not None:
            files[image] = found._replace(box=image.box)
    missing = tuple(sorted(f"{one.root}/{one.name}" for one, item in seen.items() if item is None))
    _check(missing, len(seen), policy, who, "missing", roots)
    features, unreadable = _encode(source, files)
    names = {f"{one.root}/{one.name}": reason for one, reason in unreadable.items()}
    _check(sorted(names), len(seen) - len(missing), policy, who, "unreadable", roots)
    kept = [image for image in files if image not in unreadable]
    place = {image: number for number, image in enumerate(kept)}
    return FoundImages(features, place, missing, dict(sorted(names.items())))


def _encode(
    source: FeatureSource, files: dict[ImageRef, ImageItem]
) -> tuple[Tensor, dict[ImageRef, str]]:
    try:
        return source.images(list(files.values())), {}
    except UnreadableImagesError as error:
        unreadable = {
            image: error.failures[item] for image, item in files.items() if item in error.failures
        }
    return source.images([files[image] for image in files if image not in unreadable]), unreadable


def _check(
    names: Sequence[str], wanted: int, policy: str, who: str, what: str, roots: ImageRoots
) -> None:
    if policy not in POLICIES:
        raise ValueError(f"missing: got {policy!r}, expected one of {POLICIES}")
    where = ", ".join(str(path) for path in (roots.folder, *roots.named.values()) if path)
    if names and len(names) == wanted:
        raise MissingImagesError(
            f"images: {who} needs {wanted} images, and all are {what} in {where or 'no folder'}, "
            f"such as {names[0]}"
        )
    if names and policy == "error":
        raise MissingImagesError(
            f"images: {who}: {len(names)} of {wanted} images are {what} in {where}, such as "
            f"{names[0]}"
        )
