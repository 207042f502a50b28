"""slipform eval from the command line: real annotations, few images, and open_clip beside it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import open_clip
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from slipform_training import cli
from slipform_training.train.model import create_model, save_weights
from support.train_files import NAME, draw_image, tiny_model

REAL = Path(__file__).parents[2].parent / "shared" / "data"
needs_real = pytest.mark.skipif(not (REAL / "coco_by").is_dir(), reason="no ../shared/data")
CATEGORIES = (
    "add_att",
    "add_obj",
    "replace_att",
    "replace_obj",
    "replace_rel",
    "swap_att",
    "swap_obj",
)


@pytest.fixture(autouse=True)
def _one_thread():
    """So small a model gains nothing by more."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_model(folder)
    torch.manual_seed(0)
    parts = create_model(str(folder / f"{NAME}.json"))
    save_weights(folder / "model.pt", parts.model, parts.info)
    return folder / "model.pt"


def annotations(folder=REAL / "sugarcrepe"):
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in CATEGORIES}


def one_item_an_image(folder, names):
    """SugarCrepe's files with the first item of each image."""
    left = set(names)
    folder.mkdir()
    for category, rows in annotations().items():
        kept = {}
        for key, row in rows.items():
            if row["filename"] in left:
                left.remove(row["filename"])
                kept[key] = row
        (folder / f"{category}.json").write_text(json.dumps(kept))


def photos_as(folder, count):
    """Photos under the names of images that SugarCrepe needs, some of every category."""
    names = []
    rows = [list(rows.values()) for rows in annotations().values()]
    for row in itertools.chain(*zip(*rows, strict=False)):
        if row["filename"] not in names:
            names.append(row["filename"])
    folder.mkdir(parents=True)
    photos = sorted((REAL / "coco_by/images").glob("*.jpg"))
    for number, name in enumerate(names[:count]):
        with Image.open(photos[number % len(photos)]) as image:
            image.crop((number, 0, image.width, image.height)).resize((64, 64)).save(
                folder / name, quality=95
            )
    return names[:count]


def command(tmp_path, *more, name="a", model=None, images=None):
    return [
        "eval", "--suite", "sugarcrepe", "--annotations", str(REAL / "sugarcrepe"),
        "--images", str(images or tmp_path / "images"), "--model", str(model),
        "--out", str(tmp_path / f"{name}.json"), "--cache", str(tmp_path / "features"),
        "--device", "cpu", "--no-progress", *more,
    ]  # fmt: skip


def scores(path):
    rows = pyarrow.parquet.read_table(path.with_suffix(".parquet")).to_pylist()
    return {(row["subset"], row["id"]): row["margin"] for row in rows}


@needs_real
def test_few_images_are_evaluated_and_the_rest_is_reported(tmp_path, checkpoint, capsys):
    names = photos_as(tmp_path / "images", 24)
    (tmp_path / "images" / names[-1]).write_text("no image")
    assert cli.main(command(tmp_path, model=checkpoint)) == 0
    out = capsys.readouterr().out
    wanted = {row["filename"] for rows in annotations().values() for row in rows.values()}
    content = json.loads((tmp_path / "a.json").read_text())
    suite = content["suites"]["sugarcrepe"]
    assert suite["missing_images"]["count"] == len(wanted) - 24
    assert set(suite["missing_images"]["names"]) == {
        f"coco_val2017/{name}" for name in wanted - set(names)
    }
    assert list(suite["unreadable_images"]["reasons"]) == [f"coco_val2017/{names[-1]}"]
    good = set(names[:-1])
    for category, rows in annotations().items():
        found = suite["metrics"]["accuracy"]["subsets"][category]
        assert found["items"] == len(rows)
        assert found["scored"] == sum(row["filename"] in good for row in rows.values()) > 0
    assert f"{len(wanted) - 24} images are missing" in out
    assert content["model"]["activation"] == "quick_gelu"
    assert len(content["model"]["hash"]) == 32
    assert content["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert content["encoded"]["images"] == 23

    assert cli.main(command(tmp_path, name="b", model=checkpoint)) == 0
    again = json.loads((tmp_path / "b.json").read_text())
    assert again["encoded"] == {"images": 0, "texts": 0}
    assert again["suites"] == content["suites"]
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    capsys.readouterr()
    assert cli.main(["eval", "compare", *files, "--out", str(tmp_path / "c.md")]) == 0
    table = capsys.readouterr().out
    assert "| +0.00 | +0.00 to +0.00 |" in table
    assert (tmp_path / "c.md").read_text() == table
    assert cli.main(command(tmp_path, "--missing", "error", model=checkpoint)) == 2
    assert "images are missing in" in capsys.readouterr().err


@needs_real
def test_without_images_it_fails_with_one_line(tmp_path, checkpoint, capsys):
    images = REAL / "coco_by/images"  # of train2017, which SugarCrepe does not use
    assert cli.main(command(tmp_path, model=checkpoint, images=images)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("slipform: error: images: sugarcrepe needs 1560 images, and all are")
    assert not (tmp_path / "a.json").exists()


def open_clips_margins(model, prepare, tokenizer, folder, names, data):
    """SugarCrepe's own rule, with open_clip alone."""
    rows = {
        (category, key): row
        for category, rows in annotations(data).items()
        for key, row in rows.items()
        if row["filename"] in names
    }
    images, texts = {}, {}
    with torch.no_grad():
        for name in names:
            image = prepare(Image.open(folder / name)).unsqueeze(0)
            images[name] = model.encode_image(image, normalize=True)[0]
        for key in ("caption", "negative_caption"):
            tokens = tokenizer([row[key] for row in rows.values()])
            features = [model.encode_text(part, normalize=True) for part in tokens.split(50)]
            texts[key] = torch.cat(features)
    return {
        place: float(images[row["filename"]] @ texts["caption"][number])
        - float(images[row["filename"]] @ texts["negative_caption"][number])
        for number, (place, row) in enumerate(rows.items())
    }


def check_against_open_clip(tmp_path, model, prepare, ours, name):
    """50 images; returns the number of items."""
    names = set(photos_as(tmp_path / "images", 50))
    data = tmp_path / "data"
    one_item_an_image(data, names)
    arguments = ["--annotations", str(data)]
    assert cli.main(command(tmp_path, *arguments, name="fp32", model=ours)) == 0
    tokenizer = open_clip.get_tokenizer(name)
    expected = open_clips_margins(
        model.eval(), prepare, tokenizer, tmp_path / "images", names, data
    )
    found = scores(tmp_path / "fp32.json")
    assert found.keys() == expected.keys()
    for key, margin in expected.items():
        assert found[key] == pytest.approx(margin, abs=1e-6)
        assert abs(margin) < 1e-6 or (found[key] > 0) == (margin > 0)
    arguments += ["--precision", "bf16"]
    assert cli.main(command(tmp_path, *arguments, name="bf16", model=ours)) == 0
    content = json.loads((tmp_path / "bf16.json").read_text())
    near = content["settings"]["near_tie"]
    half = scores(tmp_path / "bf16.json")
    assert half.keys() == found.keys()
    assert half != found
    for key, margin in found.items():
        assert abs(half[key]) <= near or (half[key] > 0) == (margin > 0)
    count = content["suites"]["sugarcrepe"]["metrics"]["accuracy"]["micro"]
    assert count["near_ties"] == sum(abs(margin) <= near for margin in half.values())
    return len(found)


@needs_real
def test_scores_are_open_clips(tmp_path, checkpoint):
    model, _, prepare = open_clip.create_model_and_transforms(NAME, pretrained=str(checkpoint))
    assert check_against_open_clip(tmp_path, model, prepare, checkpoint, NAME) == 50


@needs_real
@pytest.mark.slow
def test_scores_are_open_clips_with_vit_b_32(tmp_path):
    torch.manual_seed(0)
    model, _, prepare = open_clip.create_model_and_transforms("ViT-B-32")
    assert check_against_open_clip(tmp_path, model, prepare, "ViT-B-32", "ViT-B-32") == 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--suite", "sugarcrape"], "suite: got 'sugarcrape', expected some of sugarcrepe"),
        (["--model", "no-such-model"], "open_clip does not know"),
        (["--out", "table.md"], "expected the name of a json file"),
        (["--annotations", "nowhere"], "add_att.json is missing"),
        (["--annotations", "valse=nowhere"], "annotations: expected a folder for sugarcrepe"),
        (["--images", "a", "b"], "got two paths for all: a and b"),
    ],
)
def test_mistakes_are_one_line(tmp_path, checkpoint, capsys, change, message):
    arguments = [*command(tmp_path, model=checkpoint), *change]
    assert cli.main(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_what_is_needed_is_said(capsys):
    assert cli.main(["eval"]) == 2
    assert "--suite is needed" in capsys.readouterr().err
    assert cli.main(["eval", "compare", "one.json"]) == 2
    assert "expected two or more" in capsys.readouterr().err


def test_help_does_not_wait_for_torch():
    code = (
        "import sys; from slipform_training import cli\n"
        "try: cli.main(['eval', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--suite" in done.stdout


def cola(folder, *rows):
    (folder / "cola").mkdir(exist_ok=True)
    (folder / "cola/multi_objects.json").write_text(json.dumps(list(rows)))
    for row in rows:
        draw_image(folder / "vg" / row[0], 1)
        draw_image(folder / "vg" / row[2], 2)
    return [
        "eval", "--suite", "cola", "--annotations", str(folder / "cola"), "--images", str(folder),
        "--cache", str(folder / "cache"), "--no-progress",
    ]  # fmt: skip


def test_annotations_without_an_item_are_refused(tmp_path, checkpoint, capsys):
    arguments = [*cola(tmp_path), "--model", str(checkpoint), "--out", str(tmp_path / "r.json")]
    assert cli.main(arguments) == 2
    assert "got no item of cola" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


def test_another_models_results_are_not_written_over(tmp_path, checkpoint, capsys):
    arguments = cola(tmp_path, ["1.jpg", "a cat", "2.jpg", "a dog"])
    out = ["--out", str(tmp_path / "r.json")]
    assert cli.main([*arguments, "--model", str(checkpoint), *out]) == 0
    assert cli.main([*arguments, "--model", str(checkpoint), *out]) == 0
    before = (tmp_path / "r.json").read_bytes()
    other = str(checkpoint.parent / f"{NAME}.json")
    assert cli.main([*arguments, "--model", other, "--seed", "5", *out]) == 2
    assert "holds something else than this model's results" in capsys.readouterr().err
    assert (tmp_path / "r.json").read_bytes() == before


def test_retrieval_takes_tables_by_their_columns(tmp_path, checkpoint, capsys):
    for number in range(3):
        draw_image(tmp_path / f"{number}.jpg", number)
    table = tmp_path / "pairs.tsv"
    table.write_text("picture\ttext\n" + "".join(f"{i}.jpg\tpicture {i}\n" for i in range(3)))
    arguments = [
        "eval", "--suite", "retrieval", "--annotations", str(table), "--images", str(tmp_path),
        "--model", str(checkpoint), "--out", str(tmp_path / "r.json"), "--no-progress",
        "--cache", str(tmp_path / "cache"),
    ]  # fmt: skip
    assert cli.main(arguments) == 2
    assert "must have the column 'title', got ['picture', 'text']" in capsys.readouterr().err
    assert cli.main([*arguments, "--image-column", "picture", "--caption-column", "text"]) == 0
    suite = json.loads((tmp_path / "r.json").read_text())["suites"]["retrieval"]
    assert suite["metrics"]["image_to_text R@5"]["micro"]["correct"] == 3
