"""Caption files in, mined files out: formats, names of columns, errors that name the place."""

from __future__ import annotations

import ast
import csv
import io
import json
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from slipform_training.mining import Columns, InputError, Row, read_rows
from slipform_training.mining.json_stream import array_entries
from slipform_training.mining.position import Position
from slipform_training.mining.run import mined_json
from slipform_training.mining.writers import ShardWriter, mined_file

REAL = Path(__file__).parents[2].parent / "shared" / "data"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the shared data files are not here")


def rows(path, **columns):
    return list(read_rows([path], Columns(**columns)))


def tar_of(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


class TestReaders:
    @pytest.mark.parametrize("ending", ["jsonl", "tsv", "json", "tar"])
    def test_the_position_tells_the_rows_of_all_files(self, tmp_path, ending):
        count, paths = 1500, []
        for name in "ab":
            paths.append(path := tmp_path / f"{name}.{ending}")
            if ending == "jsonl":
                path.write_text("".join(f'{{"caption": "a dog {i:06d}"}}\n' for i in range(count)))
            elif ending == "tsv":
                path.write_text("title\n" + "".join(f"a dog {i:026d}\n" for i in range(count)))
            elif ending == "json":
                notes = [{"id": i, "image_id": 1, "caption": "a " * 200} for i in range(count)]
                images = [{"id": 1, "file_name": "a.jpg"}]
                path.write_text(json.dumps({"images": images, "annotations": notes}))
            else:
                tar_of(path, [(f"{i}.txt", b"a dog") for i in range(count)])
        position = Position(paths)
        for number, _ in enumerate(read_rows(paths, position=position), start=1):
            assert position.rows == number
            if number >= count:  # the second file is read ahead, by little
                assert abs(position.estimate() - 2 * count) < 900
            if number >= 2 * count - 100:
                assert abs(position.estimate() - 2 * count) <= 160
        assert position.estimate() == 2 * count

    def test_jsonl(self, tmp_path):
        path = tmp_path / "c.jsonl"
        path.write_text(
            '{"caption": "a dog", "image": "1.jpg"}\n\n'
            '{"caption": null, "image": "2.jpg", "id": 7, "x": []}\n{"caption": "ü"}\n'
        )
        found = [(row.id, row.image, row.caption) for row in rows(path)]
        assert found == [
            ("c.jsonl:0", "1.jpg", "a dog"),
            ("7", "2.jpg", None),
            ("c.jsonl:3", "", "ü"),
        ]

    @pytest.mark.parametrize(("ending", "delimiter"), [("tsv", "\t"), ("csv", ",")])
    def test_tables(self, tmp_path, ending, delimiter):
        path = tmp_path / f"c.{ending}"
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(["n", "title", "filepath"])
            writer.writerow(["5", 'a "dog", two\nlines', "1.jpg"])
            writer.writerow(["6", "", "2.jpg"])
        found = [(row.id, row.image, row.caption) for row in rows(path)]
        assert found == [
            (f"c.{ending}:0", "1.jpg", 'a "dog", two\nlines'),
            (f"c.{ending}:1", "2.jpg", ""),
        ]
        named = rows(path, caption="filepath", image="title", id="n")
        assert [(row.id, row.caption) for row in named] == [("5", "1.jpg"), ("6", "2.jpg")]

    def test_coco(self, tmp_path):
        path = tmp_path / "captions.json"
        notes = [
            {"id": 10, "image_id": 2, "caption": "a dog"},
            {"id": 11, "image_id": 1, "caption": "b"},
        ]
        images = [{"id": 1, "file_name": "one.jpg"}, {"id": 2, "file_name": "two.jpg"}]
        for order in (["annotations", "images"], ["images", "annotations"]):
            parts = {"info": {"x": [1]}, "annotations": notes, "images": images, "licenses": []}
            keys = ["info", *order, "licenses"]
            path.write_text(json.dumps({key: parts[key] for key in keys}))
            found = [(row.id, row.image, row.caption) for row in rows(path)]
            assert found == [
                ("captions.json:10", "two.jpg", "a dog"),
                ("captions.json:11", "one.jpg", "b"),
            ]

    def test_columns_that_coco_does_not_have_are_refused(self, tmp_path):
        path = tmp_path / "captions.json"
        path.write_text('{"images": [], "annotations": []}')
        assert rows(path) == []
        with pytest.raises(InputError, match="fixed names"):
            rows(path, caption="text")

    def test_shards(self, tmp_path):
        path = tar_of(
            tmp_path / "s.tar",
            [
                ("a/1.jpg", b"jpeg"),
                ("a/1.txt", b"a dog"),
                ("a/2.cls", b"3"),
                ("a/2.json", b'{"caption": "a cat"}'),
                ("a/3.png", b"png"),
            ],
        )
        found = rows(path)
        assert [(row.id, row.image, row.caption) for row in found] == [
            ("s.tar:a/1", "a/1", "a dog"),
            ("s.tar:a/2", "a/2", "a cat"),
            ("s.tar:a/3", "a/3", None),
        ]
        assert found[0].files() == [("a/1.jpg", b"jpeg"), ("a/1.txt", b"a dog")]

    def test_files_of_one_name_get_ids_of_their_own(self, tmp_path):
        paths = [tmp_path / folder / "c.jsonl" for folder in "ab"]
        for path in paths:
            path.parent.mkdir()
            path.write_text('{"caption": "a dog"}\n')
        assert len({row.id for row in read_rows(paths)}) == 2

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("c.jsonl", '{"caption": "a"}\n{oh', "c.jsonl, line 2 is not json"),
            ("c.jsonl", '{"text": "a"}\n', "line 1 must be an object with the key 'caption'"),
            ("c.jsonl", '{"caption": 3}\n', "line 1: caption must be text, got 3"),
            ("c.tsv", "caption\timage\na\tb\n", "must have the column 'title', got"),
            ("c.tsv", "title\tfilepath\na dog\n", "c.tsv, line 2: as many cells"),
            ("c.json", "[1]", "c.json is not as expected"),
            ("c.json", '{"images": []}', "has no array 'annotations'"),
            ("c.json", '{"images": [{"id": 1}]}', "must be COCO's captions"),
            ("c.json", '{"images": [{"id": 1, "fi', "c.json is not json"),
            ("c.txt", "a", "the name must end in one of .jsonl"),
            ("c.tar", "no tar at all", "is not a plain tar file"),
        ],
    )
    def test_bad_content_names_the_place(self, tmp_path, name, content, message):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            rows(path)

    def test_other_encodings_are_named(self, tmp_path):
        path = tmp_path / "c.jsonl"
        path.write_bytes('{"caption": "ü"}\n'.encode("latin-1"))
        with pytest.raises(InputError, match="must be UTF-8"):
            rows(path)

    @pytest.mark.parametrize("name", ["../x.txt", "/etc/x.txt", "a/../../x.txt", "a\\..\\x.txt"])
    def test_a_member_that_would_leave_the_folder_is_refused(self, tmp_path, name):
        path = tar_of(tmp_path / "s.tar", [("1.txt", b"a dog"), (name, b"a cat")])
        with pytest.raises(InputError, match="would be written outside of its folder") as caught:
            rows(path)
        assert repr(name) in str(caught.value)

    def test_links_are_refused(self, tmp_path):
        path = tmp_path / "s.tar"
        with tarfile.open(path, "w") as archive:
            info = tarfile.TarInfo("1.txt")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
        with pytest.raises(InputError, match=r"'1.txt' is no plain file"):
            rows(path)

    def test_long_values_and_windows(self, tmp_path):
        path = tmp_path / "a.json"
        entries = [{"id": i, "text": "x" * (i * 997 % 70_000)} for i in range(40)] + [123456, -1.5]
        path.write_text(json.dumps({"skip": [1, [2]], "a": entries, "b": 1}, indent=1))
        assert list(array_entries(path, "a", Position([path]))) == entries

    @pytest.mark.parametrize("ending", ["jsonl", "tsv", "json", "tar"])
    def test_memory_does_not_grow_with_the_file(self, tmp_path, ending):
        def peak(count):
            path = tmp_path / f"{count}.{ending}"
            texts = [f"a dog number {i} " + "on a long road " * 8 for i in range(count)]
            if ending == "jsonl":
                path.write_text("".join(json.dumps({"caption": t}) + "\n" for t in texts))
            elif ending == "tsv":
                path.write_text("title\n" + "".join(t + "\n" for t in texts))
            elif ending == "json":
                notes = [{"id": i, "image_id": 1, "caption": t} for i, t in enumerate(texts)]
                images = [{"id": 1, "file_name": "x"}]
                path.write_text(json.dumps({"images": images, "annotations": notes}))
            else:
                tar_of(path, [(f"{i}.txt", t.encode()) for i, t in enumerate(texts)])
            tracemalloc.start()
            try:
                assert sum(1 for _ in read_rows([path])) == count
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        # The least of three: what else happens to allocate in between is not the reader's.
        small, large = (min(peak(count) for _ in range(3)) for count in (2000, 6000))
        assert large < 1.5 * small + 50_000


MINED = {
    "hard_captions": ["a cat"],
    "replaced": ["dog"],
    "replacement": ["cat"],
    "edit": ["O"],
    "concreteness": [4.85],
    "rewriter": ["corpus"],
}


def mined(row):
    return {"id": row.id, "image": row.image, "caption": row.caption, **MINED}


class TestWriters:
    def write(self, writer, some_rows):
        writer.resume(None)
        for row in some_rows:
            writer.write(row, mined(row))
        writer.settle(writer.commit(last=True))

    def test_jsonl(self, tmp_path):
        path = tmp_path / "out.jsonl"
        row = Row("7", "1.jpg", "a dög")
        self.write(mined_file(path, tsv=False), [row])
        assert [json.loads(line) for line in path.open()] == [mined(row)]
        assert "dög" in path.read_text(encoding="utf-8")

    def test_tsv_is_negclips(self, tmp_path):
        path = tmp_path / "out.tsv"
        first = Row("7", "1.jpg", 'a "dog"\tor\ntwo', extra={"neg_image": "[3, 4]"})
        self.write(mined_file(path, tsv=True), [first, Row("8", "2.jpg", None)])
        with path.open(newline="") as file:
            one, two = csv.DictReader(file, delimiter="\t")
        assert (one["title"], one["filepath"]) == (first.caption, "1.jpg")
        assert ast.literal_eval(one["neg_caption"]) == ["a cat"]
        assert ast.literal_eval(one["neg_image"]) == [3, 4]
        assert ast.literal_eval(one["concreteness"]) == [4.85]
        assert (two["title"], two["neg_image"], two["id"]) == ("", "[]", "8")
        # And back in.
        assert [row.caption for row in rows(path, id="id")] == [first.caption, ""]

    def test_shards_keep_the_samples_files(self, tmp_path):
        source = tar_of(
            tmp_path / "s.tar",
            [("1.jpg", b"jpeg"), ("1.txt", b"a dog"), ("1.json", b'{"width": 3, "id": 0}')],
        )
        (row,) = rows(source)
        writer = ShardWriter(tmp_path / "out", prefix="", rows=2, images=None)
        self.write(writer, [row] * 5)
        # Commits end shards; here all rows belong to one.
        (found,) = (tmp_path / "out").iterdir()
        with tarfile.open(found) as archive:
            content = {m.name: archive.extractfile(m).read() for m in archive}
        assert content["000000004.jpg"] == b"jpeg"
        assert content["000000000.txt"] == b"a dog"
        assert json.loads(content["000000000.json"]) == {"width": 3, **mined(row)}
        again = rows(found)
        assert [r.caption for r in again] == ["a dog"] * 5

    def test_shards_take_images_from_a_folder(self, tmp_path):
        (tmp_path / "1.JPG").write_bytes(b"jpeg")
        writer = ShardWriter(tmp_path / "out", prefix="", rows=9, images=tmp_path)
        self.write(writer, [Row("7", "1.JPG", "a dog")])
        with tarfile.open(tmp_path / "out" / "000000.tar") as archive:
            assert archive.extractfile("000000000.jpg").read() == b"jpeg"
        with pytest.raises(InputError, match=r"8: the image .*gone.jpg: No such file"):
            self.write(writer, [Row("8", "gone.jpg", "a dog")])

    def test_a_row_without_hard_captions_says_why(self):
        made = mined_json(Row("7", "1.jpg", ""), [], "empty caption")
        assert made["hard_captions"] == made["edit"] == []
        assert made["reason"] == "empty caption"


@needs_real
def test_real_files():
    negclip = rows(REAL / "negclip" / "valid_neg_clip.tsv")
    assert len(negclip) == 4839
    assert negclip[0].caption == "A child holding a flowered umbrella and petting a yak."
    assert ast.literal_eval(negclip[0].extra["neg_image"]) == [2973, 1515, 2235]
    path = REAL / "coco_by" / "captions.json"
    whole = json.loads(path.read_text())
    coco = rows(path)
    assert len(coco) == len(whole["annotations"]) == 130
    names = {entry["id"]: entry["file_name"] for entry in whole["images"]}
    assert [row.image for row in coco] == [names[e["image_id"]] for e in whole["annotations"]]
