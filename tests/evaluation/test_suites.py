"""Every suite in its published layout, with accuracies computed by hand.

Features are points on a circle, so a cosine falls with the difference of two angles. Images lie at
0 degrees unless said otherwise: of two texts, the one with the smaller angle is nearer.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from slipform_training.evaluation.missing import MissingImagesError
from slipform_training.evaluation.suites import SUITES, ImageRoots, Request
from slipform_training.evaluation.tasks import TASKS, TaskRequest
from support.eval_files import CircleSource, CollapsedSource, touch_image

REAL = Path(__file__).parents[2].parent / "shared" / "data"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="no ../shared/data")

TEXTS = {"near": 5.0, "middle": 10.0, "far": 20.0, "further": 30.0, "left": -10.0}


def write(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def run(suite, folder, images=(), *, angles=None, missing="skip", source=None):
    for name in images:
        touch_image(folder / "images" / name)
    source = source or CircleSource({Path(n).name: 0.0 for n in images} | TEXTS | (angles or {}))
    roots = ImageRoots(folder / "images")
    return TASKS[suite](TaskRequest(folder / "data", roots, missing=missing), source)


def numbers(result, metric="accuracy"):
    """(correct, ties, scored, items) by subset."""
    return {
        name: (one.correct, one.ties, one.scored, one.items)
        for name, one in result.counts[metric].items()
    }


def crossed(result):
    """Correct items by metric: text, image, group."""
    return [result.micro(metric).correct for metric in ("text", "image", "group")]


def crepe_folder(folder):
    good = {"filename": "a.jpg", "caption": "near", "negative_caption": "far"}
    rows = {
        "0": good,
        "7": {**good, "caption": "further"},
        "8": {**good, "caption": "far", "negative_caption": "far"},
        "9": {**good, "filename": "lost.jpg"},
    }
    for name in SUITES["sugarcrepe"].published:
        write(folder / "data" / f"{name}.json", rows if name == "swap_obj" else {"3": good})


def test_sugarcrepe(tmp_path):
    crepe_folder(tmp_path)
    result = run("sugarcrepe", tmp_path, ["coco_val2017/a.jpg"])
    found = numbers(result)
    assert found.pop("swap_obj") == (1, 1, 3, 4)
    assert set(found.values()) == {(1, 0, 1, 1)}
    assert result.micro("accuracy").accuracy == 7 / 9
    assert result.macro("accuracy") == pytest.approx((6 + 1 / 3) / 7)
    assert result.missing == ("coco_val2017/lost.jpg",)
    rows = zip(result.scores.subset, result.scores.id, strict=True)
    assert [key for subset, key in rows if subset == "swap_obj"] == ["0", "7", "8"]


@pytest.mark.parametrize("suite", ["sugarcrepe_pp", "sugarcrepe_pp_text"])
def test_sugarcrepe_plus_plus(tmp_path, suite):
    def row(key, first, second, false, image="a.jpg"):
        return {
            "id": key, "filename": image,
            "caption": first, "caption2": second, "negative_caption": false,
        }  # fmt: skip

    rows = [
        row(0, "near", "middle", "further"),  # all right
        row(2, "near", "far", "middle"),  # the second positive fails
        row(5, "middle", "near", "left"),  # as near to the image as the first: a tie
        row(6, "near", "middle", "further", "lost.jpg"),
    ]
    for name in SUITES[suite].published:
        write(tmp_path / "data" / f"{name}.json", rows if name == "swap_att" else [])
    result = run(suite, tmp_path, ["a.jpg"])
    if suite == "sugarcrepe_pp":
        assert numbers(result, "both")["swap_att"] == (1, 1, 3, 4)
        assert numbers(result, "first")["swap_att"] == (2, 1, 3, 4)
        assert numbers(result, "second")["swap_att"] == (2, 0, 3, 4)
    else:  # between texts: 5 apart against 20; 15 against 5; 5 against 15; and the first again
        assert numbers(result, "both")["swap_att"] == (3, 0, 4, 4)
        assert result.missing == ()


def test_visual_genome_is_cropped(tmp_path):
    box = {"bbox_x": 1, "bbox_y": 2, "bbox_w": 3, "bbox_h": 4}
    row = {"image_path": "1.jpg", **box, "true_caption": "near", "false_caption": "far"}
    relations = [
        {**row, "relation_name": "on"},
        {**row, "relation_name": "on", "true_caption": "further"},
        {**row, "relation_name": "under", "bbox_w": 9},
    ]
    write(tmp_path / "data/visual_genome_relation.json", relations)
    source = CircleSource({"1.jpg": 0.0} | TEXTS)
    result = run("vg_relation", tmp_path, ["vg/1.jpg"], source=source)
    assert numbers(result) == {"on": (1, 0, 2, 2), "under": (1, 0, 1, 1)}
    assert result.macro("accuracy") == 0.75
    assert [item.box for item in source.seen] == [(1, 2, 4, 6), (1, 2, 10, 6)]


def test_attributes_are_averaged_over_pairs_of_25_and_more(tmp_path):
    box = {"bbox_x": 1, "bbox_y": 2, "bbox_w": 3, "bbox_h": 4}
    row = {"image_path": "1.jpg", **box, "true_caption": "near", "false_caption": "far"}
    wrong = {**row, "true_caption": "further"}
    rows = [{**row, "attributes": ["red", "wet"]}] * 20 + [
        {**wrong, "attributes": ["red", "wet"]}
    ] * 5
    rows += [{**wrong, "attributes": ["blue", "dry"]}] * 24
    write(tmp_path / "data/visual_genome_attribution.json", rows)
    result = run("vg_attribution", tmp_path, ["1.jpg"])
    assert numbers(result) == {"red_wet": (20, 0, 25, 25), "blue_dry": (0, 0, 24, 24)}
    assert result.macro("accuracy") == 0.8
    assert result.micro("accuracy").accuracy == 20 / 49


def test_order_with_captions_that_are_made_already(tmp_path):
    rows = [
        {"image": "a.jpg", "caption_options": ["near", "far", "further", "middle", "far"]},
        {"image": "a.jpg", "caption_options": ["middle", "far", "near", "further", "far"]},
        {"image": "a.jpg", "caption_options": ["middle", "far", "middle", "left", "far"]},
        {"image": "a.jpg", "caption_options": ["far", "far", "far", "far", "far"]},
    ]
    write(tmp_path / "data/coco_order.json", rows)
    result = run("coco_order", tmp_path, ["coco/a.jpg"])
    assert numbers(result) == {"all": (1, 1, 3, 3)}
    assert result.details["left_out"] == {
        "shuffles equal to the caption": 5,
        "captions without another order": 1,
    }


def test_valse_keeps_what_two_annotators_kept(tmp_path):
    row = {"image_file": "v7w_1.jpg", "caption": "near", "foil": "far"}
    rows = {
        "x_1": {**row, "mturk": {"caption": 2, "foil": 1, "other": 0}},
        "x_4": {**row, "caption": "further", "mturk": {"caption": 3}},
        "x_5": {**row, "mturk": {"caption": 1}},
    }
    for name in SUITES["valse"].published:
        write(tmp_path / "data/data" / f"{name}.json", rows if name == "plurals" else {})
    result = run("valse", tmp_path, ["visual7w/v7w_1.jpg"])
    assert numbers(result)["plurals"] == (1, 0, 2, 2)
    assert result.details["left_out"] == {"mturk.caption below 2": 1}


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("v7w_1.jpg", "visual7w"),
        ("VisualDialog_val2018_000000284024.jpg", "visdial_val2018"),
        ("COCO_train2014_000000254009.jpg", "coco_train2014"),
        ("COCO_val2014_000000165831.jpg", "coco_val2014"),
        ("000000291619.jpg", "coco_val2017"),
        ("exercising_255.jpg", "swig"),
    ],
)
def test_valse_knows_where_an_image_is_from(tmp_path, name, root):
    row = {"image_file": name, "caption": "a", "foil": "b", "mturk": {"caption": 3}}
    for piece in SUITES["valse"].published:
        write(tmp_path / f"{piece}.json", {"1": row})
    item = SUITES["valse"].read(Request(tmp_path)).items[0]
    assert item.images[0].root == root
    assert root in SUITES["valse"].image_roots


# Two images and two texts at angles: what Winoground's three scores say of them.
CROSSED = [
    ((0.0, 20.0), ("near", "far"), (1, 1, 1)),  # all right
    ((5.0, 9.0), ("near", "far"), (0, 1, 0)),  # both images are nearer to the first text
    ((0.0, 20.0), ("near", "left"), (0, 0, 0)),
    ((-10.0, 13.0), ("near", "far"), (1, 0, 0)),  # the first text is nearer to the second image
    ((-10.0, 10.0), ("left", "near"), (1, 1, 1)),
    ((5.0, 5.0), ("near", "far"), (0, 0, 0)),  # equal images: ties
    ((20.0, 24.0), ("far", "further"), (0, 1, 0)),
]


def scores_by_hand(images, texts):
    """Winoground's own lines."""
    distance = {(c, i): abs(TEXTS[texts[c]] - images[i]) for c in (0, 1) for i in (0, 1)}
    text = distance[0, 0] < distance[1, 0] and distance[1, 1] < distance[0, 1]
    image = distance[0, 0] < distance[0, 1] and distance[1, 1] < distance[1, 0]
    return int(text), int(image), int(text and image)


def crossed_angles(pattern="{}_{}.png"):
    return {
        pattern.format(row, place): angle
        for row, (images, _, _) in enumerate(CROSSED)
        for place, angle in enumerate(images)
    }


def test_the_table_of_crossed_items_is_right():
    assert [scores_by_hand(images, texts) for images, texts, _ in CROSSED] == [
        scores for _, _, scores in CROSSED
    ]


def expected():
    return [sum(scores[place] for *_, scores in CROSSED) for place in range(3)]


def check_crossed(suite, folder, root=""):
    angles = crossed_angles()
    result = run(suite, folder, [f"{root}{name}" for name in angles], angles=angles)
    assert crossed(result) == expected()
    assert result.micro("group").scored == len(CROSSED)
    assert result.micro("image").ties == 1
    return result


def test_winoground_from_json_lines(tmp_path):
    (tmp_path / "data").mkdir()
    lines = [
        {
            "id": 3 * row, "image_0": f"{row}_0", "image_1": f"{row}_1",
            "caption_0": texts[0], "caption_1": texts[1], "collapsed_tag": "Both",
        }
        for row, (_, texts, _) in enumerate(CROSSED)
    ]  # fmt: skip
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    (tmp_path / "data/examples.jsonl").write_text(text)
    result = check_crossed("winoground", tmp_path, "winoground/")
    assert list(result.counts["group"]) == ["Both"]
    assert "7 of 400" in result.details["unlike_published"]


@pytest.mark.parametrize("suite", ["winoground", "bivlc", "colorswap"])
def test_parquet_of_the_hub_holds_its_images(tmp_path, suite):
    image_keys, text_keys = {
        "winoground": (("image_0", "image_1"), ("caption_0", "caption_1")),
        "bivlc": (("image", "negative_image"), ("caption", "negative_caption")),
        "colorswap": (("image_1", "image_2"), ("caption_1", "caption_2")),
    }[suite]
    touch_image(tmp_path / "one.png")
    content = (tmp_path / "one.png").read_bytes()
    columns = {
        **{
            key: [{"bytes": content + bytes([row]), "path": None} for row in range(len(CROSSED))]
            for key in image_keys
        },
        **{key: [texts[i] for _, texts, _ in CROSSED] for i, key in enumerate(text_keys)},
        "type": ["swap"] * len(CROSSED),
    }
    (tmp_path / "data/data").mkdir(parents=True)
    half = pyarrow.table(columns)
    for shard, part in enumerate((half.slice(0, 3), half.slice(3))):
        pyarrow.parquet.write_table(part, tmp_path / f"data/data/test-{shard:05d}-of-00002.parquet")
    angles = {
        f"{row}_{key}.png": images[place]
        for row, (images, _, _) in enumerate(CROSSED)
        for place, key in enumerate(image_keys)
    }
    result = run(suite, tmp_path, angles=angles)
    assert crossed(result) == expected()
    written = tmp_path / "images" / suite / f"4_{image_keys[1]}.png"
    assert written.read_bytes() == content + bytes([4])
    before = written.stat().st_mtime_ns
    run(suite, tmp_path, angles=angles)
    assert written.stat().st_mtime_ns == before


def test_cola(tmp_path):
    rows = [
        [f"https://x.org/vg/{row}_0.png", texts[0], f"https://x.org/vg/{row}_1.png", texts[1]]
        for row, (_, texts, _) in enumerate(CROSSED)
    ]
    write(tmp_path / "data/multi_objects.json", rows)
    assert check_crossed("cola", tmp_path, "vg/").headline == "image"


def test_colorswap_json_and_eqben(tmp_path):
    rows = [
        {
            "id": row, "image_1": f"images/{row}_0.png", "image_2": f"images/{row}_1.png",
            "caption_1": texts[0], "caption_2": texts[1],
        }
        for row, (_, texts, _) in enumerate(CROSSED)
    ]  # fmt: skip
    write(tmp_path / "swap/data/test.json", rows)
    check_crossed("colorswap", tmp_path / "swap", "images/")
    rows = [
        {
            "image0": f"eqbenag/{row}_0.png", "image1": f"eqbenag/{row}_1.png",
            "caption0": [texts[0], "unused"], "caption1": texts[1],
        }
        for row, (_, texts, _) in enumerate(CROSSED)
    ]  # fmt: skip
    rows.append({**rows[0], "image0": "eqbenyoucook2/1.npy"})
    write(tmp_path / "eq/data/eqben_subset_10percent_final.json", rows)
    result = check_crossed("eqben", tmp_path / "eq", "eqben/eqbenag/")
    assert list(result.counts["group"]) == ["eqbenag"]
    assert result.details["left_out"] == {"images as numpy arrays": 1}


def test_mmvp_pairs_rows(tmp_path):
    (tmp_path / "data").mkdir()
    with (tmp_path / "data/Questions.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["Question ID", "Type", "Statement"])
        for row, (_, texts, _) in enumerate(CROSSED):
            for place, text in enumerate(texts):
                out.writerow([2 * row + place + 1, "Texts", text])
    angles = {
        f"{2 * row + place + 1}.jpg": angle
        for row, (images, _, _) in enumerate(CROSSED)
        for place, angle in enumerate(images)
    }
    prefixed = {f"a photo of {text}": angle for text, angle in TEXTS.items()}
    names = [f"MLLM_VLM Images/Texts/{name}" for name in angles]
    result = run("mmvp_vlm", tmp_path, names, angles=angles | prefixed)
    assert crossed(result) == expected()
    assert list(result.counts["image"]) == ["Texts"]


def test_whatsup_pairs_and_sets(tmp_path):
    right, wrong, tied = ["near", "far", "further"], ["far", "near"], ["middle", "left", "far"]

    def photo(name, options, folder="controlled_images"):
        return {"image_path": f"data/{folder}/{name}.jpeg", "caption_options": options}

    a = [
        *[photo(f"mug_{one}_table", right) for one in ("left_of", "right_of", "on", "under")],
        photo("cup_left_of_bed", wrong),
        photo("cup_right_of_bed", wrong),
        photo("cup_on_bed", right),
        photo("cup_under_bed", right),
        photo("can_left_of_box", tied),
        photo("can_right_of_box", right),
        photo("can_on_box", right),  # its partner's image is missing
        photo("can_under_box", right),
    ]
    b = [photo(f"pen_{x}_pot", right, "controlled_clevr") for x in ("in-front_of", "behind")]
    write(tmp_path / "data/controlled_images_dataset.json", a)
    write(tmp_path / "data/controlled_clevr_dataset.json", b)
    write(tmp_path / "data/coco_qa_one_obj.json", [[724, "near", "far"], [724, "far", "near"]])
    images = [f"controlled_images/{Path(row['image_path']).name}" for row in a]
    images.remove("controlled_images/can_under_box.jpeg")
    images += [f"controlled_clevr/{Path(row['image_path']).name}" for row in b]
    result = run("whatsup", tmp_path, [*images, "coco_val2017/000000000724.jpg"])
    assert numbers(result) == {
        "controlled_a": (8, 1, 11, 12),
        "controlled_b": (2, 0, 2, 2),
        "coco_one": (1, 0, 2, 2),
    }
    assert numbers(result, "pair") == {
        "controlled_a": (3, 1, 5, 6),
        "controlled_b": (1, 0, 1, 1),
    }
    assert numbers(result, "set") == {"controlled_a": (1, 0, 2, 3), "controlled_b": (0, 0, 0, 1)}
    assert result.details["incomplete_groups"] == {"pair": 1, "set": 2}
    assert result.details["left_out"] == {"files that are absent": 3}


def test_vl_checklist(tmp_path):
    def row(image, true, false):
        return [image, {"POS": [true, "unused"], "NEG": [false]}]

    write(
        tmp_path / "data/data/Attribute/vaw/action.json",
        [row("VG_100K/1.jpg", "near", "far"), row("VG_100K/1.jpg", "far", "near")],
    )
    write(tmp_path / "data/data/Relation/swig_action.json", [row("2.jpg", "near", "middle")])
    write(
        tmp_path / "data/data/Object/Size/hake_size/x.json", [row("hico/3.jpg", "middle", "left")]
    )
    result = run("vl_checklist", tmp_path, ["vg/VG_100K/1.jpg", "swig/2.jpg", "hake/hico/3.jpg"])
    assert numbers(result) == {
        "Attribute/vaw/action": (1, 0, 2, 2),
        "Object/Size/hake_size/x": (0, 1, 1, 1),
        "Relation/swig_action": (1, 0, 1, 1),
    }


def test_a_collapsed_model_scores_nothing(tmp_path):
    crepe_folder(tmp_path)
    result = run("sugarcrepe", tmp_path, ["a.jpg"], source=CollapsedSource())
    whole = result.micro("accuracy")
    assert (whole.correct, whole.ties, whole.scored) == (0, 9, 9)
    assert result.macro("accuracy") == 0.0


def test_missing_and_unreadable_images(tmp_path):
    crepe_folder(tmp_path)
    with pytest.raises(MissingImagesError, match=r"2 images, and all are missing in .*a\.jpg"):
        run("sugarcrepe", tmp_path)
    with pytest.raises(MissingImagesError, match=r"1 of 2 images are missing.*lost\.jpg"):
        run("sugarcrepe", tmp_path, ["a.jpg"], missing="error")
    broken = CircleSource({"lost.jpg": 0.0} | TEXTS, unreadable=["a.jpg"])
    result = run("sugarcrepe", tmp_path, ["a.jpg", "lost.jpg"], source=broken)
    assert result.unreadable == {"coco_val2017/a.jpg": "broken"}
    assert numbers(result)["swap_obj"] == (1, 0, 1, 4)
    with pytest.raises(MissingImagesError, match=r"1 of 2 images are unreadable.*a\.jpg"):
        run("sugarcrepe", tmp_path, source=broken, missing="error")
    with pytest.raises(ValueError, match="missing: got 'ignore'"):
        run("sugarcrepe", tmp_path, missing="ignore")


def test_a_named_root_goes_first(tmp_path):
    crepe_folder(tmp_path)
    touch_image(tmp_path / "elsewhere/a.jpg")
    touch_image(tmp_path / "images/coco_val2017/lost.jpg")
    roots = ImageRoots(tmp_path / "images", {"coco_val2017": tmp_path / "elsewhere"})
    source = CircleSource({"a.jpg": 0.0} | TEXTS)
    result = TASKS["sugarcrepe"](TaskRequest(tmp_path / "data", roots), source)
    assert [item.path for item in source.seen] == [tmp_path / "elsewhere/a.jpg"]
    assert result.missing == ("coco_val2017/lost.jpg",)


@pytest.mark.parametrize(
    ("suite", "file", "content", "message"),
    [
        ("cola", "multi_objects.json", [["a", "b", "c"]], r"row 0 must have the text 3"),
        ("cola", "multi_objects.json", {}, "must hold a list, got a dict"),
        ("vg_relation", "visual_genome_relation.json", [{}], "the number 'bbox_x'"),
        ("coco_order", "coco_karpathy_test.json", [{"image": "a"}], "'caption' or 'caption_opt"),
        ("whatsup", "coco_qa_two_obj.json", [[1, "a"]], "row 0 must have the text 2"),
        ("eqben", "private_info_global.json", [{"image0": "a"}], "the text 'image1'"),
        (
            "vl_checklist",
            "Object/a.json",
            [["a.jpg", {"POS": ["a"]}]],
            "row 0 must have the text 0",
        ),
    ],
)
def test_broken_rows_are_named(tmp_path, suite, file, content, message):
    write(tmp_path / file, content)
    with pytest.raises(ValueError, match=message):
        SUITES[suite].read(Request(tmp_path))


@pytest.mark.parametrize("suite", list(SUITES))
def test_absent_annotations_are_one_error(tmp_path, suite):
    with pytest.raises(FileNotFoundError):
        SUITES[suite].read(Request(tmp_path))


def test_an_id_twice_is_an_error(tmp_path):
    row = {"id": 1, "image_1": "a.jpg", "image_2": "a.jpg", "caption_1": "near", "caption_2": "far"}
    write(tmp_path / "data/test.json", [row, row])
    with pytest.raises(ValueError, match="test has the id '1' more than once"):
        run("colorswap", tmp_path, ["a.jpg"])


@needs_real
@pytest.mark.parametrize(
    ("suite", "folder", "size"),
    [
        ("sugarcrepe", "sugarcrepe", 7511),
        ("sugarcrepe_pp", "sugarcrepe_pp", 4757),
        ("sugarcrepe_pp_text", "sugarcrepe_pp", 4757),
        ("valse", "valse", 7702),
        ("cola", "cola", 210),
    ],
)
def test_the_real_files_have_the_published_sizes(suite, folder, size):
    reading = SUITES[suite].read(Request(REAL / folder))
    assert len(reading.items) == size
    assert SUITES[suite].size_note(reading) == ""
    assert len({(item.subset, item.id) for item in reading.items}) == size
    assert sum(SUITES[suite].published.values()) == size
    fewer = type(reading)(reading.items[1:])
    assert f"{size - 1} of {size}" in SUITES[suite].size_note(fewer) or SUITES[suite].size_note(
        fewer
    ).startswith(reading.items[0].subset)
