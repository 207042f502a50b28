"""Files of images and captions: every kind of row and image is used, or is an error by name."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

pytest.importorskip("open_clip_train")

from slipform_training.train import TrainConfig
from slipform_training.train.images import load_image
from slipform_training.train.samples import SampleError, read_samples
from support.train_files import mined_rows, write_jsonl

REAL = Path(__file__).parents[2].parent / "shared" / "data"


def config_for(data, **changes) -> TrainConfig:
    return TrainConfig(**{"model": "m", "data": str(data), "out": "o", **changes})


def all_of(samples):
    return [samples[index] for index in range(len(samples))]


def test_mined_rows_are_read_as_they_are(tmp_path):
    rows = mined_rows(tmp_path, 4)
    samples = all_of(read_samples(config_for(write_jsonl(tmp_path / "m.jsonl", rows))))
    assert [one.image for one in samples] == [row["image"] for row in rows]
    assert [one.captions for one in samples] == [[row["caption"]] for row in rows]
    assert [one.hard_captions for one in samples] == [row["hard_captions"] for row in rows]
    assert [one.concreteness for one in samples] == [row["concreteness"] for row in rows]
    assert samples[2].where == f"{tmp_path / 'm.jsonl'}, line 3"


@pytest.mark.skipif(not (REAL / "negclip").is_dir(), reason="no ../shared/data")
def test_negclips_own_tsv_is_read_by_its_own_column_names():
    path = REAL / "negclip" / "valid_neg_clip.tsv"
    samples = all_of(read_samples(config_for(path, loss="negclip")))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    # The file numbers its rows; some captions end with a line break, so there are more lines.
    assert len(samples) == len(rows) == int(rows[-1][""]) + 1
    assert [one.image for one in samples] == [row["filepath"] for row in rows]
    assert [one.captions for one in samples] == [[row["title"]] for row in rows]
    # A Python list of strings, by an evaluator that is not the reader's.
    assert [one.hard_captions for one in samples] == [
        eval(row["neg_caption"], {"__builtins__": {}}) for row in rows
    ]


@pytest.mark.skipif(not (REAL / "coco_by").is_dir(), reason="no ../shared/data")
def test_coco_gives_every_image_its_captions():
    path = REAL / "coco_by" / "captions.json"
    samples = {one.image: set(one.captions) for one in all_of(read_samples(config_for(path)))}
    found = json.loads(path.read_text())
    assert len(samples) == 26
    names = {image["id"]: image["file_name"] for image in found["images"]}
    for annotation in found["annotations"]:
        assert annotation["caption"] in samples[names[annotation["image_id"]]]
    assert sum(map(len, samples.values())) == len(found["annotations"])


ROW = {"image": "a.jpg", "caption": "a dog", "hard_captions": ["a cat"], "concreteness": [4.9]}


@pytest.mark.parametrize(
    ("line", "loss", "kind"),
    [
        ("{", "clip", "broken row"),
        ("[1]", "clip", "broken row"),
        (json.dumps({"image": "a.jpg"}), "clip", "broken row"),
        (json.dumps({**ROW, "caption": " \n"}), "clip", "empty caption"),
        (json.dumps({**ROW, "image": ""}), "clip", "no image"),
        (json.dumps({**ROW, "hard_captions": [""]}), "negclip", "empty hard caption"),
        (json.dumps({**ROW, "hard_captions": "a cat"}), "negclip", "broken row"),
        (json.dumps({**ROW, "concreteness": []}), "cement", "no concreteness"),
        (json.dumps({**ROW, "concreteness": [4.9, 2]}), "cement", "broken row"),
        (json.dumps({**ROW, "concreteness": [0.5]}), "cement", "broken row"),
        (json.dumps(ROW), "triplet", "no hard image"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_or_counted(tmp_path, line, loss, kind):
    path = tmp_path / "m.jsonl"
    path.write_text(f"{json.dumps({**ROW, 'hard_images': ['b.jpg']})}\n{line}\n")
    with pytest.raises(SampleError, match=r"m\.jsonl, line 2: ") as caught:
        read_samples(config_for(path, loss=loss))
    assert caught.value.kind == kind
    samples = read_samples(config_for(path, loss=loss, on_error="skip"))
    assert len(samples) == 1
    assert [error.kind for error in samples.left_out] == [kind]


@pytest.mark.parametrize(
    ("name", "text", "changes", "message"),
    [
        ("d.tsv", "title\tpath\nx\ty\n", {}, "image_column: got 'filepath', expected a column of"),
        ("d.tsv", "title\tfilepath\nx\ty\n", {"loss": "negclip"}, "hard_caption_column: got"),
        ("d.json", "{}", {}, "expected COCO captions with images"),
        ("d.txt", "", {}, r"expected a name in \.jsonl, \.tsv, \.csv, \.json, \.tar, or format"),
        ("d.tar", "no tar file", {}, "is not a plain tar file"),
        ("d.jsonl", "", {}, "without a usable sample"),
        (
            "d.jsonl",
            json.dumps({**ROW, "hard_captions": [], "concreteness": []}),
            {"loss": "negclip"},
            "without hard captions",
        ),
        (
            "d.jsonl",
            json.dumps(ROW),
            {"loss": "cement", "hard_images": True},
            "without hard images, expected some with the setting hard_images",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, name, text, changes, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_samples(config_for(tmp_path / name, **changes))


def test_a_cell_is_a_list_and_never_code(tmp_path):
    proof = tmp_path / "proof"
    evil = f"__import__('pathlib').Path('{proof}').touch()"
    (tmp_path / "d.tsv").write_text(f"title\tfilepath\tneg_caption\na dog\ta.jpg\t{evil}\n")
    with pytest.raises(SampleError, match="neg_caption is not a Python list"):
        read_samples(config_for(tmp_path / "d.tsv", loss="negclip"))
    assert not proof.exists()


# Left half red, right half blue: what an image must be after loading, whatever it was before.
RED, BLUE = (250, 10, 10), (10, 10, 250)


def halves(size=(32, 16)):
    image = Image.new("RGB", size, BLUE)
    image.paste(RED, (0, 0, size[0] // 2, size[1]))
    return image


def assert_halves(image, *, tolerance=12):
    assert (image.mode, image.size) == ("RGB", (32, 16))
    for place, colour in (((4, 8), RED), ((28, 8), BLUE)):
        assert np.abs(np.subtract(image.getpixel(place), colour)).max() <= tolerance


def test_palette_and_cmyk_images_have_their_colours(tmp_path):
    halves().quantize(4).save(tmp_path / "palette.png")
    assert_halves(load_image(tmp_path / "palette.png"))
    # Ink is what light is not: cyan 255 takes away all red.
    ink = Image.merge("CMYK", [*(band.point(lambda v: 255 - v) for band in halves().split()),
                               Image.new("L", (32, 16), 0)])  # fmt: skip
    ink.save(tmp_path / "cmyk.jpg", quality=95, subsampling=0)
    with Image.open(tmp_path / "cmyk.jpg") as stored:
        assert stored.mode == "CMYK"
    assert_halves(load_image(tmp_path / "cmyk.jpg"), tolerance=20)


def test_grey_images_of_8_and_16_bits_are_the_same_greys(tmp_path):
    ramp = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (16, 1))
    Image.fromarray(ramp).save(tmp_path / "8.png")
    Image.fromarray(ramp.astype(np.uint16) * 257).save(tmp_path / "16.png")
    want = np.repeat(ramp[:, :, None], 3, axis=2)
    for name in ("8.png", "16.png"):
        assert np.array_equal(np.asarray(load_image(tmp_path / name)), want), name


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_exif_rotation_is_applied(tmp_path, orientation):
    turn = {3: 180, 6: 90, 8: 270}[orientation]  # degrees that the camera's picture is off
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = halves().rotate(turn, expand=True)
    turned.save(tmp_path / "r.jpg", exif=exif, quality=95, subsampling=0)
    assert_halves(load_image(tmp_path / "r.jpg"), tolerance=20)


def test_transparent_parts_are_white_and_animations_their_first_frame(tmp_path):
    image = halves().convert("RGBA")
    image.putalpha(Image.new("L", (32, 16), 0))
    image.save(tmp_path / "clear.png")
    assert load_image(tmp_path / "clear.png").getpixel((4, 8)) == (255, 255, 255)
    halves().save(tmp_path / "a.gif", save_all=True, append_images=[Image.new("RGB", (32, 16))])
    assert_halves(load_image(tmp_path / "a.gif"))


def test_files_that_are_no_image_are_named(tmp_path):
    halves((320, 160)).save(tmp_path / "whole.jpg")
    content = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "empty.jpg").touch()
    os.mkfifo(tmp_path / "pipe.jpg")  # reading it would wait for ever
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "float.tiff")
    for name, kind in {
        "cut.jpg": "unreadable image",
        "text.jpg": "unreadable image",
        "empty.jpg": "unreadable image",
        "float.tiff": "unreadable image",
        "pipe.jpg": "missing file",
        "none.jpg": "missing file",
        "zero\0byte.jpg": None,
    }.items():
        with pytest.raises(SampleError) as caught:
            load_image(tmp_path / name)
        assert kind in (caught.value.kind, None)
        assert name in str(caught.value)


def test_broken_profiles_do_not_matter(tmp_path):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()[:50]
    halves().save(tmp_path / "p.png", icc_profile=profile)
    assert_halves(load_image(tmp_path / "p.png"))
    assert torch.is_tensor(torch.from_numpy(np.array(load_image(tmp_path / "p.png"))))


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def test_shards_give_the_samples_that_their_files_hold(tmp_path):
    """As webdataset writes them: a sample's files in a row, by a common name before the dot."""
    rows = mined_rows(tmp_path, 5)
    for shard, numbers in (("a-0.tar", [0, 1, 2]), ("a-1.tar", [3, 4])):
        with tarfile.open(tmp_path / shard, "w") as archive:
            for number in numbers:
                name = f"folder/sample{number}"
                picture = (tmp_path / rows[number]["image"]).read_bytes()
                add(archive, f"{name}.jpg", picture)
                add(archive, f"{name}.json", json.dumps({**rows[number], "image": name}).encode())
                if number == 4:
                    add(archive, f"{name}.txt", b"another caption")
    for data in (tmp_path, tmp_path / "a-*.tar"):
        samples = all_of(read_samples(config_for(data, loss="cement", format="shards")))
        assert [one.hard_captions for one in samples] == [row["hard_captions"] for row in rows]
        captions = [row["caption"] for row in rows[:4]]
        assert [one.captions[0] for one in samples] == [*captions, "another caption"]
        for one, row in zip(samples, rows, strict=True):
            found = load_image(Path(one.image), one.span)
            assert np.array_equal(
                np.asarray(found), np.asarray(Image.open(tmp_path / row["image"]))
            )
    (tmp_path / "a-1.tar").write_bytes((tmp_path / "a-1.tar").read_bytes()[:2000])
    with pytest.raises(SampleError, match=r"a-1\.tar: unreadable image: the file ends within"):
        load_image(Path(samples[-1].image), samples[-1].span)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"x.txt": b"a dog"}, "no image"),
        ({"x.jpg": b"", "x.png": b"", "x.txt": b"a dog"}, "no image"),
        ({"x.jpg": b""}, "broken row"),
        ({"x.jpg": b"", "x.txt": b" "}, "empty caption"),
        ({"x.jpg": b"", "x.json": b"["}, "broken row"),
        ({"x.jpg": b"", "x.json": b"[]"}, "broken row"),
        ({"x.jpg": b"", "x.txt": b"\xff"}, "broken row"),
    ],
)
def test_a_sample_of_a_shard_that_cannot_be_used_is_named(tmp_path, files, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in files.items():
            add(archive, name, content)
    with pytest.raises(SampleError, match=r"a\.tar, sample x: ") as caught:
        read_samples(config_for(tmp_path / "a.tar"))
    assert caught.value.kind == kind


def test_links_in_a_shard_are_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("x.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    with pytest.raises(ValueError, match=r"a\.tar: the member 'x\.jpg' is no plain file"):
        read_samples(config_for(tmp_path / "a.tar"))
