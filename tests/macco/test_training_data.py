"""MACCO's tsv as training data: from the file to batches with masks."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("open_clip_train")

from slipform_training.finetune import Batch
from slipform_training.macco.crop import RecordedCrop
from slipform_training.macco.patch_mask import Grid, box_mask
from slipform_training.macco.rows import ConceptRow, Concepts, Phrase, write_concept_rows
from slipform_training.train import TrainConfig
from slipform_training.train.batches import ImageTextBatches
from slipform_training.train.material import Group
from slipform_training.train.model import create_model
from slipform_training.train.run import _batches
from slipform_training.train.samples import SampleError, read_samples
from support.train_files import draw_image, tiny_model

SIZE = (40, 36)  # of the images
BOX = [4, 0, 20, 36]


def rows(count, **changes):
    for number in range(count):
        concepts = {
            "objects": ["car", "road"],
            "attributes": ["red"],
            "relations": ["on"],
            "phrases": [Phrase("red car", "attribute", [BOX])],
        }
        yield ConceptRow(
            image=f"{number}.jpg",
            caption=f"picture {number}: a Red car on a road",
            concepts=Concepts(**{**concepts, **changes}),
            hard_captions=[f"a red road on a car {number}", "a car on a red road"],
            hard_images=[number],
        )


@pytest.fixture
def folder(tmp_path):
    for number in range(12):
        draw_image(tmp_path / "pictures" / f"{number}.jpg", number, SIZE)
    write_concept_rows(tmp_path / "d.tsv", rows(12))
    return tmp_path


def config_for(folder, **changes):
    settings = {
        "model": tiny_model(folder),
        "data": str(folder / "d.tsv"),
        "images": str(folder / "pictures"),
        "out": str(folder / "out"),
        "objective": "macco",
        "batch_size": 5,
    }
    return TrainConfig(**{**settings, **changes})


def batches_for(config):
    parts = create_model(config.model)
    return _batches(config, parts, read_samples(config), 0, 1), parts


def test_the_format_is_told_by_its_columns(folder):
    samples = read_samples(config_for(folder))
    assert samples[3].captions == ["picture 3: a Red car on a road"]
    assert samples[3].hard_captions == ["a red road on a car 3", "a car on a red road"]
    assert Concepts.of_plain(samples[3].concepts).phrases[0].boxes == [BOX]
    plain = read_samples(config_for(folder, objective="contrastive"))
    assert plain[3].concepts is None
    assert plain[3].hard_captions == samples[3].hard_captions


def test_batches_have_masks(folder):
    batches, parts = batches_for(config_for(folder, macco_random_probability=0.0))
    batch = next(batches)
    grid = Grid.of(parts.model.visual)
    assert batch.word_mask.shape == batch.texts.shape == (5, 16)
    assert batch.patch_mask.shape == (5, grid.rows * grid.cols) == (5, 4)
    assert batch.word_mask.dtype == batch.patch_mask.dtype == torch.bool
    red, on = (parts.tokenizer([word])[0, 1] for word in ("red", "on"))
    assert torch.equal(batch.word_mask, (batch.texts == red) | (batch.texts == on))
    # 32 pixels of patches of 16: the box lies left of the middle, by any crop of nine tenths, and
    # its right edge, 20 of 40 pixels, on one side of it or on the other.
    assert batch.patch_mask.reshape(5, 2, 2)[:, :, 0].all()


def test_the_mask_follows_the_crop_of_the_image(folder):
    """The pixels of a batch come again from the crop that the mask was made with."""
    config = config_for(folder, macco_random_probability=0.0)
    batches, parts = batches_for(config)
    material = batches._material
    loaded = material[Group(3, 0, [7, 2])]
    crops = []

    class Spy(RecordedCrop):
        def __call__(self, image):
            pixels, crop = super().__call__(image)
            crops.append((pixels, crop))
            return pixels, crop

    material._masks.crop = Spy(parts.augment)
    again = material[Group(3, 0, [7, 2])]
    grid = Grid.of(parts.model.visual)
    for place, (pixels, crop) in enumerate(crops):
        assert torch.equal(loaded.tensors["images"][place], pixels)
        assert torch.equal(loaded.tensors["patch_mask"][place], box_mask([BOX], crop, grid))
    assert torch.equal(again.tensors["images"], loaded.tensors["images"])


def test_pixels_are_those_of_the_contrastive_objective(folder):
    with_masks, _ = batches_for(config_for(folder))
    without, _ = batches_for(config_for(folder, objective="contrastive"))
    for _ in range(4):
        one, other = next(with_masks), next(without)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.texts, other.texts)
        assert other.word_mask is None
        assert other.patch_mask is None


def fields_of(batch: Batch):
    return {name: value for name, value in vars(batch).items() if value is not None}


def assert_same(one, other):
    assert fields_of(one).keys() == fields_of(other).keys()
    for name, value in fields_of(one).items():
        assert torch.equal(value, fields_of(other)[name]), name


@pytest.mark.slow
def test_workers_and_a_restart_change_nothing(folder):
    config = config_for(folder, loss="negclip", macco_random_probability=0.5)
    one, _ = batches_for(config)
    other, _ = batches_for(config_for(folder, loss="negclip", macco_random_probability=0.5,
                                      workers=2))  # fmt: skip
    expected = [next(one) for _ in range(6)]
    assert any(
        not torch.equal(a.patch_mask, b.patch_mask)
        for a, b in zip(expected[:3], expected[3:], strict=True)
    )
    for batch in expected[:3]:
        assert_same(batch, next(other))
    state = other.state_dict()
    third, _ = batches_for(config)
    third.load_state_dict(state)
    for batch in expected[3:]:
        assert_same(batch, next(third))
    assert expected[0].hard_texts is not None
    assert third.counts == one.counts


def test_what_is_not_masked_is_in_the_report(folder):
    write_concept_rows(folder / "d.tsv", rows(12, attributes=["blue"], phrases=[]))
    config = config_for(folder, macco_random_probability=0.0)
    batches, _ = batches_for(config)
    next(batches)
    report = batches.report()
    assert "words of concepts that their captions do not hold: 5" in report
    assert "'blue' in 'picture " in report
    assert "d.tsv, line " in report
    assert report.count("'blue'") == 3  # a few examples
    assert "images without a phrase that has boxes: 5" in report
    assert "captions without a masked word" not in report
    again, _ = batches_for(config)
    again.load_state_dict(batches.state_dict())
    assert again.report() == report


def test_words_beyond_the_context_are_in_the_report(folder):
    long = [
        ConceptRow(
            image=f"{number}.jpg",
            caption="dog " * 20 + "on a road",
            concepts=Concepts(relations=["on"]),
        )
        for number in range(5)
    ]
    write_concept_rows(folder / "d.tsv", long)
    batches, _ = batches_for(config_for(folder))
    batch = next(batches)
    assert not batch.word_mask.any()
    report = batches.report()
    assert "captions cut to the context length: 5" in report
    assert "words of concepts beyond the context length: 5" in report
    assert "captions without a masked word: 5" in report


BROKEN = [
    ([9, 0, 5, 9], "broken row", "expected x1 <= x2"),
    ([0, 0, 9], "broken row", "expected .x1, y1, x2, y2."),
    ([0, 0, 60, 9], "broken box", "20 pixels outside of the image of 40 x 36"),
]


@pytest.mark.parametrize(("box", "kind", "message"), BROKEN)
def test_a_broken_box_names_its_row_or_is_counted(folder, box, kind, message):
    good, bad = list(rows(12)), list(rows(12, phrases=[Phrase("car", "attribute", [box])]))
    write_concept_rows(folder / "d.tsv", [*good[:4], bad[4], *good[5:]])

    def take(count, **changes):
        batches, _ = batches_for(config_for(folder, **changes))
        for _ in range(count):
            next(batches)
        return batches

    with pytest.raises(SampleError, match=message) as caught:
        take(3)
    assert caught.value.kind == kind
    assert caught.value.where.endswith("d.tsv, line 6")
    left_out = read_samples(config_for(folder, on_error="skip")).left_out
    assert [error.kind for error in left_out] == [kind] * (kind == "broken row")
    assert bool(take(4, on_error="skip").skipped["broken box"]) == (kind == "broken box")


def test_a_broken_box_is_nothing_to_the_contrastive_objective(folder):
    write_concept_rows(
        folder / "d.tsv", rows(12, phrases=[Phrase("car", "attribute", [[9, 0, 5]])])
    )
    batches, _ = batches_for(config_for(folder, objective="contrastive"))
    assert isinstance(batches, ImageTextBatches)
    assert len(next(batches)) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment": False}, "augment: got False, expected true with the objective macco"),
        ({"macco_random_probability": 1.5}, "macco_random_probability: got 1.5, expected 0 to 1"),
        ({"objective": "mae"}, "objective: got 'mae', expected one of contrastive, macco"),
    ],
)
def test_settings_that_do_not_fit(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        config_for(folder, **changes)


def test_other_data_is_refused(folder):
    (folder / "n.tsv").write_text("title\tfilepath\na dog\t1.jpg\n")
    with pytest.raises(ValueError, match="expected MACCO's tsv with the objective macco"):
        read_samples(config_for(folder, data=str(folder / "n.tsv")))
    with pytest.raises(ValueError, match="format: macco, object_list: got 'object_list', expected"):
        read_samples(config_for(folder, data=str(folder / "n.tsv"), format="macco"))


def test_draws_follow_from_seed_epoch_and_sample(folder):
    def places(*, epoch, number, seed=0):
        config = config_for(folder, macco_random_masks=True, seed=seed)
        batches, _ = batches_for(config)
        loaded = batches._material[Group(epoch, 0, [number])]
        return tuple(loaded.tensors["word_mask"][0].nonzero().flatten().tolist())

    assert places(epoch=0, number=3) == places(epoch=0, number=3)
    assert len({places(epoch=epoch, number=3) for epoch in range(6)}) > 2
    assert len({places(epoch=0, number=number) for number in range(6)}) > 2
    assert len({places(epoch=0, number=3, seed=seed) for seed in range(6)}) > 2
