"""Settings of a training: from yaml and flags, and nothing that is not understood."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

pytest.importorskip("open_clip_train")

from slipform_training import cli
from slipform_training.train import TrainConfig
from slipform_training.train.settings_file import check_settings, read_settings, write_settings

NEEDED = {"model": "RN50", "data": "d.jsonl", "out": "runs/x"}


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bacth_size: 3", "unknown key 'bacth_size'; the nearest known one is 'batch_size'"),
        (
            "warm-up-steps: 3",
            "unknown key 'warm-up-steps'; the nearest known one is 'warmup_steps'",
        ),
        ("lr: fast", "lr: got 'fast', expected a number"),
        ("batch_size: 2.5", "batch_size: got 2.5, expected a whole number"),
        ("batch_size: true", "batch_size: got True, expected a whole number"),
        ("augment: 1", "augment: got 1, expected true or false"),
        ("model: 3", "model: got 3, expected text"),
        ("chunk_size: x", "chunk_size: got 'x', expected a whole number or null"),
        ("lr: 1\nlr: 2", "the key 'lr' stands twice"),
        ("- lr", "got list, expected settings"),
        ("a: [", "cannot be read as yaml"),
        ("a: !!python/object/apply:os.system ['true']", "cannot be read as yaml"),
    ],
)
def test_a_file_that_is_not_understood_is_an_error_that_names_it(tmp_path, text, message):
    path = write(tmp_path / "run.yaml", text)
    with pytest.raises(ValueError, match=r"run\.yaml") as caught:
        read_settings(path)
    assert message in str(caught.value)


def test_numbers_without_a_dot_are_numbers(tmp_path):
    found = read_settings(write(tmp_path / "run.yaml", "lr: 1e-6\nweight_decay: 1\nsteps: null"))
    assert found == {"lr": 1e-6, "weight_decay": 1.0, "steps": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, "model: got nothing"),
        ({"loss": "infonce"}, "loss: got 'infonce', expected one of clip, negclip"),
        ({"steps": 3, "epochs": 1.0}, "steps: got 3 and epochs 1.0, expected one"),
        ({"margin": 0.1}, "margin: got 0.1, expected none with the loss clip"),
        ({"loss": "negclip", "margin_static": True}, "margin_static: got True, expected"),
        ({"hard_captions": 2}, "hard_captions: got 2, expected 1 with the loss clip"),
        ({"loss": "triplet", "hard_captions": 2}, "hard_captions: got 2, expected 1 with triplet"),
        ({"hard_images": True}, "hard_images: got True, expected false but for the loss cement"),
        (
            {"loss": "cement", "hard_images": True, "hard_captions": 2},
            "hard_captions: got 2, expected 1 with hard_images",
        ),
        ({"workers": -1}, "workers: got -1, expected at least 0"),
    ],
)
def test_settings_out_of_range_are_named(changes, message):
    with pytest.raises(ValueError, match=r"\w+: got") as caught:
        TrainConfig(**{**NEEDED, **changes})
    assert message in str(caught.value)


def test_what_is_written_is_read_back(tmp_path):
    config = TrainConfig(**NEEDED, lr=1e-7, chunk_size=4, augment=False, pretrained="openai")
    write_settings(tmp_path / "resolved.yaml", config)
    assert TrainConfig(**read_settings(tmp_path / "resolved.yaml")) == config


def test_every_setting_has_a_flag_and_flags_win_over_the_file(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("slipform_training.train.run.run_training", seen.append)
    path = write(tmp_path / "run.yaml", yaml.safe_dump({**NEEDED, "lr": 0.5, "seed": 3}))
    other = {"steps": 7, "lr": 0.25, "augment": False, "loss": "cement", "margin": 0.2}
    flags = ["--steps", "7", "--lr", "0.25", "--no-augment", "--loss", "cement", "--margin", "0.2"]
    assert cli.main(["train", "--config", str(path), *flags]) == 0
    assert seen == [TrainConfig(**{**NEEDED, "seed": 3, **other})]
    text = cli._parser()[1]["train"].format_help()
    for one in dataclasses.fields(TrainConfig):
        assert f"--{one.name.replace('_', '-')}" in text
    assert set(check_settings(dataclasses.asdict(seen[0]), where="here")) == set(
        dataclasses.asdict(seen[0])
    )


def test_an_unknown_flag_names_the_nearest_one(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "--bacth-size", "3"])
    assert stopped.value.code == 2
    assert "unrecognized arguments: --bacth-size 3" in (error := capsys.readouterr().err)
    assert "nearest to --bacth-size: --batch-size" in error
    with pytest.raises(SystemExit):  # no abbreviations: what they mean changes with new options
        cli.main(["train", "--warmup", "3"])


def test_errors_of_a_run_are_one_line(tmp_path, capsys):
    path = write(tmp_path / "run.yaml", "learning_rate: 3")
    assert cli.main(["train", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("slipform: error: ")
    assert error.count("\n") == 1
    assert cli.main(["train", "--config", str(tmp_path / "no.yaml")]) == 2
    assert "no.yaml: No such file" in capsys.readouterr().err
