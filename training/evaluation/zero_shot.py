"""Zero-shot classification of images by the names of their classes (CLIP, arXiv 2103.00020)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .encoder import FeatureSource, ImageItem
from .labelled import LabelledImages
from .similarities import similarities

_BLOCK = 4096


@dataclass(frozen=True)
class ClassScores:
    """Ranks of the true classes.

    classes: C different names, the folders'. targets: int64 [N], the true class.
    ranks: int64 [N], from 0: the other classes that are at least as similar as the true one.
    ties: images with another class exactly as similar as the true one, which counts as wrong.
    """

    classes: tuple[str, ...]
    targets: Tensor
    ranks: Tensor
    ties: int

    def top(self, k: int) -> float:
        """Share of the images whose true class is among the first k, 0 to 1."""
        return (self.ranks < k).double().mean().item()

    def by_class(self, k: int = 1) -> dict[str, float]:
        """The same for each class that has images."""
        return {
            self.classes[number]: (self.ranks[self.targets == number] < k).double().mean().item()
            for number in self.targets.unique().tolist()
        }

    def mean_by_class(self, k: int = 1) -> float:
        """Unweighted mean of by_class(k)."""
        shares = self.by_class(k).values()
        return sum(shares) / len(shares)

    def table(self) -> str:
        """Accuracies in percent, as lines of text."""
        lines = [f"{'':<16}{'top 1':>8}{'top 5':>8}"]
        for name, of in (("images", self.top), ("mean per class", self.mean_by_class)):
            lines.append(f"{name:<16}{100 * of(1):>8.2f}{100 * of(5):>8.2f}")
        lines.append(f"{len(self.ranks)} images, {len(self.classes)} classes, {self.ties} ties")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Figures for a json file."""
        return {
            "images": len(self.ranks),
            "classes": len(self.classes),
            "top1": self.top(1),
            "top5": self.top(5),
            "top1_mean_per_class": self.mean_by_class(1),
            "top5_mean_per_class": self.mean_by_class(5),
            "top1_by_class": self.by_class(1),
            "ties": self.ties,
        }


def evaluate_zero_shot(
    data: LabelledImages,
    source: FeatureSource,
    *,
    names: Sequence[str],
    templates: Sequence[str],
) -> ClassScores:
    """Classification of the images of `read_class_folders`.

    names: one for each of data.classes(), in that order; see `class_names`. templates: texts with
    {} where the name goes; see `read_templates`.
    """
    folders = data.classes()
    if len(names) != len(folders):
        raise ValueError(f"names: got {len(names)}, expected {len(folders)}, one a class")
    number = {folder: index for index, folder in enumerate(folders)}
    targets = torch.tensor([number[label] for (label,) in data.labels])
    images = source.images([ImageItem(path) for path in data.paths])
    return classify(images, class_features(source, names, templates), targets, folders)


def class_features(source: FeatureSource, names: Sequence[str], templates: Sequence[str]) -> Tensor:
    """fp32 [C, D], unit norm: the mean of a class's texts' features, as open_clip computes it."""
    texts = [template.replace("{}", name) for name in names for template in templates]
    features = source.texts(texts).reshape(len(names), len(templates), -1).mean(1)
    norms = features.norm(dim=1, keepdim=True)
    if not bool((norms > 0).all()):
        raise ValueError("names: got a class whose texts' features cancel out")
    return features / norms


def classify(
    images: Tensor, features: Tensor, targets: Tensor, classes: tuple[str, ...]
) -> ClassScores:
    """images fp32 [N, D], features fp32 [C, D], targets int64 [N] -> the true classes' ranks."""
    ranks, ties = [], 0
    for at in range(0, len(images), _BLOCK):
        block = similarities(images[at : at + _BLOCK], features)
        own = block.gather(1, targets[at : at + _BLOCK, None])
        ranks.append((block >= own).sum(1) - 1)
        ties += int(((block == own).sum(1) > 1).sum())
    return ClassScores(classes, targets, torch.cat(ranks), ties)


def class_names(folders: Sequence[str], path: Path | None = None) -> list[str]:
    """A name for each folder.

    path: json with an object folder -> name, json with a list or text with a line a name, in the
    order of the sorted folders; None: the folders' own names, underscores as spaces.

    Raises:
        OSError: no such file.
        ValueError: not as many names as folders, or a folder without a name.
    """
    if path is None:
        return [folder.replace("_", " ") for folder in folders]
    text = path.read_text(encoding="utf-8-sig")
    try:
        found = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as json ({error})") from error
    if isinstance(found, dict):
        missing = [folder for folder in folders if folder not in found]
        if missing:
            raise ValueError(f"{path}: got no names for {', '.join(missing[:5])}")
        names = [found[folder] for folder in folders]
    else:
        names = [line.strip() for line in found if isinstance(line, str) and line.strip()]
    if len(names) != len(folders) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{path}: got {len(names)} names, expected {len(folders)}, one a folder")
    return names


def read_templates(which: str) -> list[str]:
    """Templates by name, or from a text file with one a line.

    which: "openai" (80, those of CLIP's authors for ImageNet), "simple" (7, their choice of those),
    both as open_clip has them, "photo" ("a photo of a {}.") or a path.

    Raises:
        ValueError: neither, or a line without {}.
    """
    if which == "photo":
        return ["a photo of a {}."]
    if which in ("openai", "simple"):
        import open_clip

        known = {
            "openai": open_clip.OPENAI_IMAGENET_TEMPLATES,
            "simple": open_clip.SIMPLE_IMAGENET_TEMPLATES,
        }
        return [template("{}") for template in known[which]]
    path = Path(which)
    if not path.is_file():
        raise ValueError(f"templates: got {which!r}, expected openai, simple, photo or a file")
    lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    templates = [line for line in lines if line]
    wrong = [line for line in templates if "{}" not in line]
    if wrong or not templates:
        raise ValueError(f"{path}: expected lines with {{}} in them, got {wrong[:1] or 'none'}")
    return templates
