"""`slipform probe`: what it writes, for folders and for tables, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("open_clip")
pytest.importorskip("sklearn")

from PIL import Image

from slipform_training import cli
from support.train_files import tiny_model

COLOURS = {"red": (220, 30, 20), "green": (20, 200, 40), "blue": (30, 40, 230)}


def paint(path, colour, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-30, 30, (32, 32, 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folders(tmp_path):
    seed = 0
    for split, count in (("train", 8), ("val", 4), ("test", 5)):
        for name, colour in COLOURS.items():
            for number in range(count):
                seed += 1
                paint(tmp_path / "pictures" / split / name / f"{number}.png", colour, seed)
    return tmp_path / "pictures"


def probe(tmp_path, *arguments):
    return cli.main(
        ["probe", "--model", tiny_model(tmp_path), "--out", str(tmp_path / "out"),
         "--grid", "1e-6", "1e-2", "3", "--no-progress", *map(str, arguments)]
    )  # fmt: skip


@pytest.mark.parametrize("features", ["tower", "projected"])
@pytest.mark.parametrize("solver", ["torch", "sklearn"])
def test_folders_of_classes(folders, tmp_path, capsys, features, solver):
    splits = [("--" + name, folders / name) for name in ("train", "val", "test")]
    options = [item for pair in splits for item in pair]
    assert probe(tmp_path, *options, "--features", features, "--solver", solver) == 0
    report = json.loads((tmp_path / "out" / "probe.json").read_text())
    assert report["images"] == {"train": 24, "val": 12, "test": 15}
    assert report["feature_size"] == {"tower": 32, "projected": 16}[features]
    assert report["test"]["accuracy"] > 0.9  # plain colours, even through random weights
    assert report["classes"] == ["blue", "green", "red"]
    assert report["model"]["activation"] == "quick_gelu"
    assert len(report["searched"]) == 3
    shown = capsys.readouterr().out
    assert "| accuracy | mean per class | ties |" in shown
    assert f"{100 * report['test']['accuracy']:.2f}" in (tmp_path / "out" / "probe.md").read_text()


def test_tables_of_several_labels_and_missing_images(folders, tmp_path, capsys):
    rows = [
        f"{split}/{name}/{number}.png,{name}|{'warm' if name == 'red' else 'cold'}"
        for split, count in (("train", 8), ("test", 5))
        for name in COLOURS
        for number in range(count)
    ]
    for split in ("train", "test"):
        own = [row for row in rows if row.startswith(split)]
        extra = ["train/absent.png,red|warm"] if split == "train" else []
        lines = ["filepath,labels", *extra, *own]
        (tmp_path / f"{split}.csv").write_text("\n".join(lines) + "\n")
    options = (
        "--train", tmp_path / "train.csv", "--test", tmp_path / "test.csv", "--images", folders,
        "--label-column", "labels", "--delimiter", "|",
    )  # fmt: skip
    assert probe(tmp_path, *options) == 2
    assert "absent.png: missing file" in capsys.readouterr().err
    assert probe(tmp_path, *options, "--missing", "skip") == 0
    report = json.loads((tmp_path / "out" / "probe.json").read_text())
    assert report["images"] == {"train": 24, "test": 15}
    (skipped,) = report["skipped"]["train"]
    assert "absent.png" in skipped
    assert report["classes"] == ["blue", "cold", "green", "red", "warm"]
    assert report["test"]["mAP"] > 0.9
    assert report["test"]["mAP_voc11"] > 0.9
    assert "skipped 1" in (tmp_path / "out" / "probe.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--train", "absent", "--test", "absent"], "absent: expected a folder with a subfolder"),
        (["--train", "absent.csv", "--test", "absent"], "absent.csv: No such file"),
        (["--train", "a", "--test", "a", "--grid", "1", "0.1", "3"], "grid: got 1 0.1 3"),
        (["--train", "a", "--test", "a", "--delimiter", ";"], "delimiter: got ';' for a"),
        (["--train", "a", "--test", "a", "--pretrained", "x", "--checkpoint", "y"], "checkpoint:"),
    ],
)
def test_refusals_are_one_line(tmp_path, capsys, arguments, expected):
    assert probe(tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("slipform: error: ")
    assert expected in error
    assert error.count("\n") == 1
