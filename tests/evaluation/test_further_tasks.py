"""Retrieval and zero-shot classification as tasks of `slipform eval`, against sorting in place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("open_clip")

from slipform_training.evaluation.missing import MissingImagesError
from slipform_training.evaluation.suites import ImageRoots
from slipform_training.evaluation.tasks import TASKS, TaskRequest


class Hashed:
    """Unit features that follow from the file's name, or the text, alone."""

    def images(self, items):
        return self._features([f"{item.path.parent.name}/{item.path.name}" for item in items])

    def texts(self, texts):
        return self._features(texts)

    def _features(self, names):
        rows = [np.random.default_rng(list(name.encode())).standard_normal(6) for name in names]
        return torch.nn.functional.normalize(torch.tensor(np.array(rows)).float(), dim=1)


class Collapsed(Hashed):
    def _features(self, names):
        return torch.ones(len(names), 4) / 2


def karpathy(folder: Path, *, absent: tuple[int, ...] = ()) -> Path:
    entries = []
    for number in range(40):
        name = f"{number}.jpg"
        captions = [{"raw": f"caption {number} {k}"} for k in range(1 + number % 3)]
        entries.append(
            {"split": "test" if number < 30 else "val", "filename": name, "sentences": captions}
        )
        if number not in absent:
            (folder / "images").mkdir(exist_ok=True)
            (folder / "images" / name).touch()
    path = folder / "dataset.json"
    path.write_text(json.dumps({"images": entries}))
    return path


def test_retrieval_counts_every_query(tmp_path):
    path = karpathy(tmp_path, absent=(4, 7))
    request = TaskRequest(path, ImageRoots(tmp_path / "images"))
    found = TASKS["retrieval"](request, Hashed())
    kept = [number for number in range(30) if number not in (4, 7)]
    captions = [(number, f"caption {number} {k}") for number in kept for k in range(1 + number % 3)]
    source = Hashed()
    images = source._features([f"images/{number}.jpg" for number in kept]).double()
    texts = source.texts([text for _, text in captions]).double()
    cosines = (images @ texts.T).numpy()
    for k in (1, 5, 10):
        right = 0
        for row, number in enumerate(kept):
            best = np.argsort(-cosines[row])
            owners = [captions[j][0] for j in best]
            others = [owner for owner in owners[: owners.index(number)] if owner != number]
            right += len(others) < k
        count = found.counts[f"image_to_text R@{k}"]["all"]
        assert (count.items, count.scored, count.correct) == (30, len(kept), right)
        right = sum(
            list(np.argsort(-cosines[:, j])).index(kept.index(number)) < k
            for j, (number, _) in enumerate(captions)
        )
        count = found.counts[f"text_to_image R@{k}"]["all"]
        assert (count.scored, count.correct) == (len(captions), right)
        rows = [place for place, name in enumerate(found.scores.metric) if name.endswith(f"@{k}")]
        correct = found.scores.correct[rows]
        assert len(rows) == len(kept) + len(captions)
        assert correct.sum() == sum(
            found.counts[f"{way} R@{k}"]["all"].correct
            for way in ("image_to_text", "text_to_image")
        )
    assert len(found.missing) == 2
    assert len(set(zip(found.scores.metric, found.scores.id, strict=True))) == len(found.scores.id)


def test_zero_shot_counts_every_image(tmp_path):
    names = {"n01": "tabby cat", "n02": "fire truck", "n03": "owl"}
    for number in range(25):
        path = tmp_path / "data" / f"n0{1 + number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "names.json").write_text(json.dumps(names))
    request = TaskRequest(tmp_path / "data", templates="photo", class_names=tmp_path / "names.json")
    found = TASKS["zero_shot"](request, Hashed())
    source = Hashed()
    texts = source.texts([f"a photo of a {name}." for name in names.values()]).double()
    for place, folder in enumerate(names):
        files = sorted((tmp_path / "data" / folder).iterdir())
        images = source._features([f"{folder}/{file.name}" for file in files]).double()
        right = int(((images @ texts.T).argmax(1) == place).sum())
        count = found.counts["top1"][folder]
        assert (count.items, count.scored, count.correct) == (len(files), len(files), right)
        assert found.counts["top5"][folder].correct == len(files)


def test_a_collapsed_model_scores_0(tmp_path):
    retrieval = TASKS["retrieval"](
        TaskRequest(karpathy(tmp_path), ImageRoots(tmp_path / "images")), Collapsed()
    )
    assert retrieval.micro("image_to_text R@10").correct == 0
    assert retrieval.micro("text_to_image R@10").correct == 0
    assert retrieval.counts["image_to_text R@1"]["all"].ties == 30
    for folder in ("a", "b"):
        (tmp_path / "classes" / folder).mkdir(parents=True)
        (tmp_path / "classes" / folder / "1.png").touch()
    zero_shot = TASKS["zero_shot"](TaskRequest(tmp_path / "classes"), Collapsed())
    assert zero_shot.micro("top1").correct == 0


def test_missing_images_are_an_error_where_asked_or_where_all_are(tmp_path):
    path = karpathy(tmp_path, absent=(4,))
    roots = ImageRoots(tmp_path / "images")
    with pytest.raises(MissingImagesError, match="retrieval: 1 of 30 images are missing"):
        TASKS["retrieval"](TaskRequest(path, roots, missing="error"), Hashed())
    with pytest.raises(MissingImagesError, match="retrieval needs 30 images, and all are missing"):
        TASKS["retrieval"](TaskRequest(path, ImageRoots(tmp_path / "empty")), Hashed())
