"""Batches of a training: full, repeatable, resumable, and nothing in them that should not be."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

pytest.importorskip("open_clip_train")
import open_clip

from slipform_training.train import TrainConfig
from slipform_training.train.batches import ImageTextBatches, SkipLog
from slipform_training.train.material import Material
from slipform_training.train.samples import SampleError, read_samples
from support.train_files import mined_rows, write_jsonl

BAD = {"2": "missing file", "5": "unreadable image", "9": "unreadable image"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """18 samples of which 3 cannot be loaded; each caption ends with its number."""
    folder = tmp_path_factory.mktemp("data")
    rows = mined_rows(folder, 18)
    (folder / "pictures/2.jpg").unlink()
    (folder / "pictures/5.jpg").write_text("broken")
    content = (folder / "pictures/9.jpg").read_bytes()
    (folder / "pictures/9.jpg").write_bytes(content[: len(content) // 2])
    write_jsonl(folder / "mined.jsonl", rows)
    return folder


def words(texts: list[str]) -> Tensor:
    """A stand-in tokenizer: a row starts with the number in the text, and shows the words."""
    rows = []
    for text in texts:
        number = next(word for word in reversed(text.split()) if word.isdigit())
        rows.append([1 + int(number), *(sum(map(ord, w)) for w in text.split())][:8])
    return torch.tensor([row + [0] * (8 - len(row)) for row in rows])


def noisy(image) -> Tensor:
    """A stand-in transform that draws from every generator a transform may draw from."""
    import random

    noise = torch.rand(2) + random.random() + np.random.rand()
    return torch.cat([torch.tensor(image.getpixel((3, 3))).float(), noise])


def make(folder, *, workers=0, skip=True, log=None, rank=0, ranks=1, batch_size=4, **changes):
    settings = {
        "model": "m",
        "data": str(folder / "mined.jsonl"),
        "images": str(folder),
        "out": "o",
        "loss": "cement",
        "on_error": "skip" if skip else "raise",
        "seed": 11,
    }
    config = TrainConfig(**{**settings, **changes})
    material = Material(read_samples(config), config, transform=noisy, tokenizer=words)
    skip_log = SkipLog(log or folder / "unused.jsonl") if skip else None
    return ImageTextBatches(
        material, batch_size=batch_size, seed=11, rank=rank, ranks=ranks, skip=skip_log,
        workers=workers,
    )  # fmt: skip


def numbers(batch) -> list[int]:
    return (batch.texts[:, 0] - 1).tolist()


def assert_same(left, right):
    for name in ("images", "texts", "hard_texts", "concreteness", "hard_mask"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name


def test_batches_are_full_and_hold_good_samples_once_an_epoch(folder):
    batches = make(folder)
    for _ in range(5):
        epoch = [numbers(next(batches)) for _ in range(3)]  # 15 good ones: 3 batches, 3 left out
        drawn = [number for batch in epoch for number in batch]
        assert len(set(drawn)) == 12
        assert not set(drawn) & set(map(int, BAD))


def test_what_is_skipped_is_counted_and_logged_by_name(folder, tmp_path):
    batches = make(folder, log=tmp_path / "skipped.jsonl")
    for _ in range(10):
        next(batches)
    lines = [json.loads(line) for line in (tmp_path / "skipped.jsonl").read_text().splitlines()]
    assert batches.skipped == Counter(line["kind"] for line in lines)
    assert {line["where"].rpartition("/")[2] for line in lines} <= {f"{n}.jpg" for n in BAD}
    for line in lines:
        number = line["where"].rpartition("/")[2].removesuffix(".jpg")
        assert line["kind"] == BAD[number]
        assert line["detail"].endswith(f"mined.jsonl, line {int(number) + 1}")
    assert len({(line["epoch"], line["where"]) for line in lines}) == len(lines)
    assert f"skipped {len(lines)} (" in batches.report()


def test_without_skip_the_first_bad_file_is_an_error_with_its_name(folder):
    batches = make(folder, skip=False)
    with pytest.raises(SampleError, match=r"pictures/[259]\.jpg: (missing|unreadable)"):
        all(next(batches) for _ in range(5))


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 8])
def test_a_restored_position_goes_on_as_if_nothing_had_happened(folder, tmp_path, stop):
    whole, first = (make(folder, log=tmp_path / f"{name}.jsonl") for name in "ab")
    wanted = [next(whole) for _ in range(12)]
    for index in range(stop):
        assert_same(next(first), wanted[index])
    state = json.loads(json.dumps(first.state_dict()))
    for _ in range(3):  # lost work, whose lines in the log must not stay
        next(first)
    again = make(folder, log=tmp_path / "b.jsonl")
    again.load_state_dict(state)
    for index in range(stop, 12):
        assert_same(next(again), wanted[index])
    assert again.state_dict() == whole.state_dict()
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()


def test_worker_processes_change_nothing(folder, tmp_path):
    alone, shared = make(folder), make(folder, workers=2, log=tmp_path / "s.jsonl")
    before = torch.get_rng_state()
    for _ in range(7):
        assert_same(next(alone), next(shared))
    assert alone.state_dict() == shared.state_dict()
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_share_an_epoch_without_overlap(folder):
    drawn = []
    for rank in range(3):
        batches = make(folder, rank=rank, ranks=3, batch_size=2)
        drawn.append({number for _ in range(2) for number in numbers(next(batches))})
    assert sum(map(len, drawn)) == len(set().union(*drawn)) >= 8


@pytest.mark.parametrize("ranks", [1, 2])
def test_captions_of_one_image_are_in_different_batches(tmp_path, ranks):
    """Rows 3 n, 3 n + 1 and 3 n + 2 are of image n; batches of 8 over both ranks."""
    rows = mined_rows(tmp_path, 120)
    for number, row in enumerate(rows):
        row["image"] = f"pictures/{number // 3}.jpg"
    data = write_jsonl(tmp_path / "m.jsonl", rows)
    own = [
        make(tmp_path, data=data, ranks=ranks, rank=rank, batch_size=8 // ranks)
        for rank in range(ranks)
    ]
    first = json.loads(json.dumps([one.state_dict() for one in own]))
    twice, batches = 0, []
    for _ in range(6 * 15):
        drawn = [next(one) for one in own]
        batches.append(drawn)
        images = [number // 3 for batch in drawn for number in numbers(batch)]
        twice += len(images) - len(set(images))
    assert twice <= 2
    if ranks == 1:
        assert own[0].counts["twice"] == twice
    for one, state in zip(own, first, strict=True):
        one.load_state_dict(state)
    for drawn in batches[:20]:
        for one, batch in zip(own, drawn, strict=True):
            assert_same(next(one), batch)


def test_samples_that_cannot_be_apart_are_counted(tmp_path):
    rows = [{**row, "image": "pictures/0.jpg"} for row in mined_rows(tmp_path, 8)]
    batches = make(tmp_path, data=write_jsonl(tmp_path / "m.jsonl", rows))
    next(batches)
    next(batches)
    assert batches.counts["twice"] == 6
    assert "samples beside another of the same image: 6" in batches.report()


def test_hard_captions_are_the_samples_own_or_masked(folder):
    batch = next(make(folder, hard_captions=2, batch_size=15))
    assert batch.hard_texts.shape == (15, 2, 8)
    for index, number in enumerate(numbers(batch)):
        mined = number % 4 != 3
        assert batch.hard_mask[index].tolist() == [mined, mined]
        if mined:
            assert sorted(batch.concreteness[index].tolist()) == [3.5, 4.5]
            assert (batch.hard_texts[index, :, 0] - 1).tolist() == [number, number]
            assert not torch.equal(batch.hard_texts[index, 0], batch.hard_texts[index, 1])


def test_one_of_several_hard_captions_changes_with_the_epoch(folder):
    batches = make(folder)
    seen = {}
    for _ in range(30):
        batch = next(batches)
        for index, number in enumerate(numbers(batch)):
            if batch.hard_mask[index]:
                seen.setdefault(number, set()).add(float(batch.concreteness[index]))
    assert sum(len(found) == 2 for found in seen.values()) > len(seen) / 2


def test_hard_images_belong_to_the_hard_caption_or_are_masked(folder):
    """Every third sample with hard captions has no hard images, as where one could not be made."""
    rows = [json.loads(line) for line in (folder / "mined.jsonl").open()]
    for row in rows:
        number = int(row["id"])
        if row["hard_captions"] and number % 3:
            others = [(number + step) % 18 for step in (6, 10)]
            row["hard_images"] = [f"pictures/{o if str(o) not in BAD else 0}.jpg" for o in others]
    data = write_jsonl(folder / "paired.jsonl", rows)
    batches = make(folder, data=data, hard_images=True, batch_size=15)
    plain = make(folder, data=data, batch_size=15)
    seen = set()
    for _ in range(4):
        batch = next(batches)
        sources = next(plain).images
        for index, number in enumerate(numbers(batch)):
            found = batch.hard_images[index, :3]
            names = rows[number].get("hard_images", [])
            assert batch.hard_mask[index].tolist() == [bool(names)]
            if not names:
                assert torch.equal(batch.hard_images[index], sources[index])
                continue
            at = [3.5, 4.5].index(float(batch.concreteness[index]))
            seen.add(at)
            with Image.open(folder / names[at]) as image:
                assert found.tolist() == list(image.getpixel((3, 3)))
    assert seen == {0, 1}


@pytest.mark.parametrize(("batch_size", "message"), [(19, "at most 18"), (16, "got 15 usable")])
def test_too_few_samples_for_a_batch_are_an_error(folder, batch_size, message):
    with pytest.raises(ValueError, match=message):
        next(make(folder, batch_size=batch_size))


def test_a_state_of_other_data_is_refused(folder):
    state = make(folder).state_dict()
    with pytest.raises(ValueError, match="state: got batch_size 4, expected 3"):
        make(folder, batch_size=3).load_state_dict(state)


def test_long_captions_are_cut_and_counted_and_no_hard_caption_becomes_the_caption(tmp_path):
    """The word that a hard caption changes may lie behind the context's end."""
    rows = mined_rows(tmp_path, 4)[:3]
    long = " ".join(f"word{n}" for n in range(400))
    rows[1].update(caption=f"{long} dog", hard_captions=[f"{long} cat"], concreteness=[4.0])
    exact = "a photo of a dog on a mat in the sun with you"  # 13 tokens, with start and end 15
    rows[2].update(caption=exact, hard_captions=[exact.replace("dog", "cat")], concreteness=[4.0])
    config = TrainConfig(
        model="m",
        data=write_jsonl(tmp_path / "m.jsonl", rows),
        images=str(tmp_path),
        out="o",
        loss="negclip",
    )
    tokenizer = open_clip.SimpleTokenizer(context_length=15)
    assert len(tokenizer.encode(exact)) == 13
    material = Material(read_samples(config), config, transform=noisy, tokenizer=tokenizer)
    batches = ImageTextBatches(material, batch_size=3, seed=0)
    batch = next(batches)
    is_long = batch.texts[:, 14].eq(tokenizer.eot_token_id) & batch.texts[:, 1].ne(320)
    assert batch.hard_mask.flatten().tolist() == (~is_long).tolist()
    assert is_long.sum() == 1
    assert batches.counts == {"cut": 2, "same": 1}
    assert "captions cut to the context length: 2" in batches.report()
