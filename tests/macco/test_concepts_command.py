"""`slipform concepts`: files in, MACCO's tsv out, whatever stops it meanwhile."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("spacy")

from slipform_training import cli
from slipform_training.macco import run as macco_run
from slipform_training.macco.concepts import ConceptTagger
from slipform_training.macco.rows import read_concept_rows
from slipform_training.macco.run import ConceptSettings, find_all
from slipform_training.mining import MismatchError
from slipform_training.mining import resume as mining_resume
from slipform_training.mining import tagging as mining_tagging
from support.write_stops import WriteStops

REAL = Path(__file__).parents[2].parent / "shared" / "data"
needs_real = pytest.mark.skipif(not (REAL / "coco_by").is_dir(), reason="no ../shared/data")

COLOURS = ("red", "blue", "green", "white", "black")
THINGS = ("dog", "cat", "horse", "bench", "boat", "kite", "clock")


def captions(count):
    for i in range(count):
        yield f"a {COLOURS[i % 5]} {THINGS[i % 7]} on a {COLOURS[i % 3]} table" if i % 11 else ""


def write_captions(path, count=60, **more):
    lines = (
        json.dumps({"caption": text, "image": f"{i}.jpg", **more})
        for i, text in enumerate(captions(count))
    )
    path.write_text("".join(line + "\n" for line in lines))
    return path


_CACHE: dict = {}


@dataclass(frozen=True)
class CachingTagger(ConceptTagger):
    """The real one, asked once for each text."""

    def tag(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in _CACHE]
        _CACHE.update(zip(new, super().tag(new), strict=True))
        return [_CACHE[text] for text in texts]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(mining_tagging, "BLOCK", 8)
    monkeypatch.setattr(mining_resume, "COMMIT_SECONDS", 0.0)


def settings(source, out, **more):
    return ConceptSettings(inputs=(source,), out=out, tagger=CachingTagger(), **more)


def command(*arguments):
    return cli.main(["concepts", *map(str, arguments), "--no-progress"])


def test_plain_captions(tmp_path, capsys):
    source = write_captions(tmp_path / "c.jsonl", 23)
    assert command(source, "--out", tmp_path / "out.tsv") == 0
    rows = list(read_concept_rows(tmp_path / "out.tsv"))
    wanted = [(f"{i}.jpg", text) for i, text in enumerate(captions(23)) if text]
    assert [(row.image, row.caption) for row in rows] == wanted
    for row in rows:
        _, colour, thing, _, _, other, _ = row.caption.split()
        assert row.concepts.objects == [thing, "table"]
        assert row.concepts.attributes == [colour, other]
        assert row.concepts.relations == ["on"]
        assert {(one.text, one.kind) for one in row.concepts.phrases} == {
            (f"{thing} on table", "relation"),
            (f"{colour} {thing}", "attribute"),
            (f"{other} table", "attribute"),
        }
    printed = capsys.readouterr().out
    for line in (
        "rows: 20",
        "left out, empty caption: 3",
        "rows with objects: 20 (100.0%), 40 in all",
        "rows with relations: 20 (100.0%), 20 in all",
        "phrases: 60, with boxes 0",
        "rows with boxes: 0 (0.0%)",
        "without, no boxes asked for: 20",
    ):
        assert line in printed
    report = json.loads((tmp_path / "out.tsv.report.json").read_text())
    assert (report["rows"], report["left_out"]) == (20, {"empty caption": 3})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"c.jsonl", "out.tsv", "out.tsv.report.json"}


@pytest.mark.parametrize("kind", ["tsv", "csv", "coco", "mined"])
def test_other_inputs_and_their_hard_captions(tmp_path, kind):
    hard = ["a red cat"]
    if kind == "coco":
        source = tmp_path / "c.json"
        source.write_text(
            json.dumps(
                {
                    "images": [{"id": 1, "file_name": "1.jpg"}],
                    "annotations": [{"id": 7, "image_id": 1, "caption": "a red dog"}],
                }
            )
        )
        hard = []
    elif kind == "mined":
        source = tmp_path / "c.jsonl"
        row = {"id": "7", "image": "1.jpg", "caption": "a red dog", "hard_captions": hard}
        row["concreteness"] = [4.85]
        source.write_text(json.dumps(row) + "\n")
    else:
        source = tmp_path / f"c.{kind}"
        with source.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
            writer.writerow(["title", "filepath", "neg_caption", "neg_image"])
            writer.writerow(["a red dog", "1.jpg", "['a red cat']", "[3, 4]"])
    find_all(settings(source, tmp_path / "out.tsv"))
    (row,) = read_concept_rows(tmp_path / "out.tsv")
    assert (row.image, row.caption, list(row.hard_captions)) == ("1.jpg", "a red dog", hard)
    assert list(row.hard_images) == ([3, 4] if kind in ("tsv", "csv") else [])
    assert list(row.concreteness) == ([4.85] if kind == "mined" else [])


@pytest.mark.slow
def test_workers_give_the_same_bytes(tmp_path):
    source = write_captions(tmp_path / "c.jsonl", 300)
    for workers in (1, 2):
        out = tmp_path / f"{workers}.tsv"
        find_all(ConceptSettings(inputs=(source,), out=out), workers=workers)
    assert (tmp_path / "1.tsv").read_bytes() == (tmp_path / "2.tsv").read_bytes()


def test_any_step_may_be_the_last(tmp_path, small_blocks, monkeypatch):
    """Stops at each write to disk in turn, once before and once after it took effect."""
    source = write_captions(tmp_path / "c.jsonl", 30)
    find_all(settings(source, tmp_path / "whole.tsv"))
    expected = (tmp_path / "whole.tsv").read_bytes()
    report = json.loads((tmp_path / "whole.tsv.report.json").read_text())
    stops = WriteStops(monkeypatch)
    crashes = 0
    for step in range(1, 100):
        for after in (False, True):
            folder = tmp_path / f"{step}-{after}"
            folder.mkdir()
            chosen = settings(source, folder / "out.tsv")
            crashes += stops.stops(partial(find_all, chosen), step=step, after=after)
            again = find_all(chosen)
            assert (folder / "out.tsv").read_bytes() == expected
            assert again.data == {name: report[name] for name in again.data}
        if stops.count < step:
            break
    assert crashes > 20


@pytest.mark.slow
def test_a_killed_process_goes_on(tmp_path):
    source = write_captions(tmp_path / "c.jsonl", 1500)
    script = "import sys; from slipform_training.cli import main; sys.exit(main())"
    call = [sys.executable, "-c", script, "concepts", str(source), "--no-progress", "--out"]
    subprocess.run([*call, str(tmp_path / "whole.tsv")], check=True, capture_output=True)
    out = tmp_path / "out.tsv"
    process = subprocess.Popen([*call, str(out)], stdout=subprocess.DEVNULL)
    state = tmp_path / "out.tsv.state.json"
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        if state.exists() and json.loads(state.read_text())["blocks"]:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    subprocess.run([*call, str(out)], check=True, capture_output=True)
    assert out.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


def test_other_settings_are_refused(tmp_path, small_blocks):
    source = write_captions(tmp_path / "c.jsonl")
    find_all(settings(source, tmp_path / "out.tsv"))
    other = ConceptSettings(
        inputs=(source,), out=tmp_path / "out.tsv", tagger=CachingTagger("another")
    )
    with pytest.raises(MismatchError, match="the earlier run had model = "):
        find_all(other)
    (tmp_path / "out.tsv.report.json").unlink()
    with pytest.raises(MismatchError, match="is there, but not its report"):
        find_all(settings(source, tmp_path / "out.tsv"))
    find_all(settings(source, tmp_path / "out.tsv"), fresh=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["c.jsonl", "--out", "o.jsonl"], "out: got o.jsonl, expected a name in .tsv"),
        (["c.tar", "--out", "o.tsv"], "inputs: got c.tar, expected files that name their images"),
        (["o.tsv", "--out", "o.tsv"], "out: got o.tsv, where the input o.tsv is"),
        (["gone.jsonl", "--out", "o.tsv"], "no such file"),
        (["c.jsonl", "--out", "o.tsv", "--workers", "0"], "workers: got 0, expected at least 1"),
        (
            ["c.jsonl", "--out", "o.tsv", "--spacy-model", "no_such"],
            "spaCy or its pipeline no_such is missing",
        ),
        (
            ["c.jsonl", "--out", "o.tsv", "--boxes", "i.json", "--detector", "m"],
            "detector: got m and boxes, expected one of them",
        ),
        (["bad.tsv", "--out", "o.tsv"], "bad.tsv:0: neg_caption: got 'none', expected a Python"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_captions(tmp_path / "c.jsonl", 3)
    (tmp_path / "i.json").write_text("{}")
    (tmp_path / "bad.tsv").write_text("title\tfilepath\tneg_caption\na dog\t1.jpg\tnone\n")
    assert command(*arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.slow
@needs_real
def test_real_photos_boxes_and_the_sheet(tmp_path, capsys):
    pytest.importorskip("open_clip")
    from PIL import Image

    data = REAL / "coco_by"
    sheet = tmp_path / "sheet.png"
    code = command(
        data / "captions.json", "--out", tmp_path / "out.tsv", "--boxes", data / "instances.json",
        "--images", data / "images", "--sheet", sheet,
    )  # fmt: skip
    assert code == 0
    rows = list(read_concept_rows(tmp_path / "out.tsv"))
    assert len(rows) == 130
    sizes = {
        one["file_name"]: (one["width"], one["height"])
        for one in json.loads((data / "captions.json").read_text())["images"]
    }
    boxed = 0
    for row in rows:
        width, height = sizes[row.image]
        for one in row.concepts.phrases:
            boxed += bool(one.boxes)
            for x1, y1, x2, y2 in one.boxes:
                assert 0 <= x1 < x2 <= width + 0.05  # rounded to a tenth
                assert 0 <= y1 < y2 <= height + 0.05
    assert boxed > 100
    assert f"with boxes {boxed}" in capsys.readouterr().out
    with Image.open(sheet) as picture:
        assert picture.width > 2000
        assert len(picture.convert("RGB").getcolors(2**24)) > 10_000  # photos, not a blank page


def test_a_detector_is_asked_for_the_phrases(tmp_path, monkeypatch):
    asked = []

    class Everywhere:
        def detect(self, images, phrases):
            asked.extend(zip(images, phrases, strict=True))
            for wanted in phrases:
                yield [[macco_run.Box(1, 2, 3, 4.04)] for _ in wanted]

    monkeypatch.setattr(ConceptSettings, "make_detector", lambda self: Everywhere())
    source = write_captions(tmp_path / "c.jsonl", 5)
    report = find_all(settings(source, tmp_path / "out.tsv"))
    rows = list(read_concept_rows(tmp_path / "out.tsv"))
    assert [image for image, _ in asked] == [row.image for row in rows]
    for row, (_, wanted) in zip(rows, asked, strict=True):
        assert [one.text for one in row.concepts.phrases] == [one.text for one in wanted]
        assert all(one.boxes == [[1, 2, 3, 4]] for one in row.concepts.phrases)
    assert (report.rows, report.with_boxes) == (4, 4)


def test_a_table_without_the_images_column_is_refused(tmp_path, capsys):
    """Else every row would be left out, with the exit code of success."""
    source = tmp_path / "c.tsv"
    source.write_text("title\tpicture\na red dog\t1.jpg\n")
    assert command(source, "--out", tmp_path / "out.tsv") == 2
    assert "must have the column 'filepath', got ['title', 'picture']" in capsys.readouterr().err
    assert command(source, "--out", tmp_path / "out.tsv", "--image-column", "picture") == 0


def test_rows_that_name_no_image_give_a_warning(tmp_path, capsys):
    source = tmp_path / "c.jsonl"
    source.write_text('{"caption": "a red dog", "picture": "1.jpg"}\n')
    assert command(source, "--out", tmp_path / "out.tsv") == 0
    assert "warning: no row of the input could be used" in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path, capsys):
    assert command(tmp_path / "c.jsonl", "--out", tmp_path / "out.tsv") == 2
    assert "c.jsonl: no such file" in capsys.readouterr().err
