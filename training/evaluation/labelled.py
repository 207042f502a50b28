"""Images with labels: a folder a class, or a table."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from slipform_training.train.shards import IMAGE_ENDINGS


@dataclass(frozen=True)
class LabelledImages:
    """N images, and for each the names of its labels (one, or any number if multi-label).

    ignored: files in the folders that are no images by their name.
    """

    paths: tuple[Path, ...]
    labels: tuple[tuple[str, ...], ...]
    ignored: tuple[Path, ...] = ()

    def classes(self) -> tuple[str, ...]:
        """The labels that occur, sorted."""
        return tuple(sorted({name for names in self.labels for name in names}))

    def take(self, numbers: Sequence[int]) -> LabelledImages:
        """The images of these numbers, in this order."""
        return LabelledImages(
            tuple(self.paths[number] for number in numbers),
            tuple(self.labels[number] for number in numbers),
            self.ignored,
        )

    def indicators(self, classes: Sequence[str]) -> Tensor:
        """bool [N, C]: which of `classes` each image has; others are left out."""
        number = {name: index for index, name in enumerate(classes)}
        found = torch.zeros(len(self.paths), len(classes), dtype=torch.bool)
        for row, names in enumerate(self.labels):
            for name in names:
                if name in number:
                    found[row, number[name]] = True
        return found


def read_class_folders(root: Path) -> LabelledImages:
    """Images of root/CLASS/..., sorted; the subfolder's name is the label.

    Raises:
        ValueError: no such folder, no subfolders, or one without images.
    """
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if not folders:
        raise ValueError(f"{root}: expected a folder with a subfolder for each class")
    paths: list[Path] = []
    labels: list[tuple[str, ...]] = []
    ignored: list[Path] = []
    for folder in folders:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        images = [path for path in files if path.suffix.lower().lstrip(".") in IMAGE_ENDINGS]
        if not images:
            raise ValueError(f"{folder}: got no images, expected {', '.join(IMAGE_ENDINGS)}")
        paths += images
        labels += [(folder.name,)] * len(images)
        ignored += [path for path in files if path not in set(images)]
    return LabelledImages(tuple(paths), tuple(labels), tuple(ignored))


def read_label_table(
    path: Path,
    *,
    root: Path,
    image_column: str = "filepath",
    label_column: str = "label",
    delimiter: str | None = None,
) -> LabelledImages:
    """Images and labels of a csv or tsv with a header; paths begin at `root`.

    delimiter: what separates the labels in a cell, so that an image may have any number of them;
    None: one label, which is the whole cell.

    Raises:
        OSError: no such file.
        ValueError: a missing column or cell, no rows; the message names the line.
    """
    paths, labels = [], []
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        header = list(rows.fieldnames or ())
        for name, column in (("image_column", image_column), ("label_column", label_column)):
            if column not in header:
                raise ValueError(
                    f"{name}: got {column!r}, expected a column of {path}: {', '.join(header)}"
                )
        for row in rows:
            image, cell = row[image_column], row[label_column]
            names = [] if cell is None else [cell] if delimiter is None else cell.split(delimiter)
            found = tuple(name.strip() for name in names if name.strip())
            if not image or cell is None or (delimiter is None and not found):
                raise ValueError(f"{path}, line {rows.line_num}: no image or no label")
            paths.append(root / image)
            labels.append(found)
    if not paths:
        raise ValueError(f"{path}: got no rows, expected images with labels")
    return LabelledImages(tuple(paths), tuple(labels))
