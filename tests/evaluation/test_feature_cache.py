"""The cache of features: nothing twice, nothing wrong, nothing lost at a stop."""

from __future__ import annotations

import shutil

import pytest
import torch

from slipform_training.evaluation import feature_cache
from slipform_training.evaluation.encoder import ImageItem, UnreadableImagesError
from slipform_training.evaluation.feature_cache import FeatureCache
from support.train_files import draw_image


class Towers:
    width = 4


class CountingSource:
    """Encodes an image as the sum of its bytes, a text as its letters; batches of three."""

    towers = Towers()

    def __init__(self, stop_after=None):
        self.encoded, self.stop_after = [], stop_after

    def image_batches(self, items):
        for start in range(0, len(items), 3):
            batch = range(start, min(start + 3, len(items)))
            failed = {i: "broken" for i in batch if items[i].path.read_bytes() == b"broken"}
            good = [i for i in batch if i not in failed]
            yield good, failed, self._rows([items[i] for i in good], self._image)

    def text_batches(self, texts):
        for start in range(0, len(texts), 3):
            batch = range(start, min(start + 3, len(texts)))
            yield batch, self._rows([texts[i] for i in batch], self._text)

    def _rows(self, items, encode):
        if self.stop_after is not None and len(self.encoded) >= self.stop_after:
            raise KeyboardInterrupt
        self.encoded += items
        return torch.stack([encode(item) for item in items]) if items else torch.empty(0, 4)

    @staticmethod
    def _image(item):
        content = item.path.read_bytes()
        return torch.tensor([len(content), sum(content), *(item.box or (0, 0))[:2]]).float()

    @staticmethod
    def _text(text):
        return torch.tensor([len(text), sum(map(ord, text)), 1, 2]).float()


def cache(folder, source, model="m", report=print):
    return FeatureCache(source, folder, model=model, report=report)


@pytest.fixture
def items(tmp_path):
    for number in range(8):
        draw_image(tmp_path / f"p/{number}.png", number)
    return [ImageItem(tmp_path / f"p/{number}.png") for number in range(8)]


def rows(items):
    return torch.stack([CountingSource._image(item) for item in items])


def test_features_come_in_the_order_asked_for_and_are_encoded_once(tmp_path, items):
    source = CountingSource()
    wanted = [items[5], items[0], items[5], items[3]]
    own = cache(tmp_path / "f", source)
    assert torch.equal(own.images(wanted), rows(wanted))
    assert len(source.encoded) == 3
    assert torch.equal(own.images(items), rows(items))
    assert len(source.encoded) == 8
    assert own.encoded == {"images": 8, "texts": 0}
    texts = ["b", "aa", "b", "c" * 40]
    expected = torch.stack([CountingSource._text(text) for text in texts])
    assert torch.equal(own.texts(texts), expected)
    later = CountingSource()
    again = cache(tmp_path / "f", later)
    assert torch.equal(again.images(items[::-1]), rows(items[::-1]))
    assert torch.equal(again.texts(texts), expected)
    assert later.encoded == []
    assert again.images([]).shape == (0, 4)


def test_the_key_is_the_content_the_box_and_the_model(tmp_path, items):
    cache(tmp_path / "f", CountingSource()).images(items[:1])
    moved = tmp_path / "other name.png"
    shutil.copy(items[0].path, moved)
    source = CountingSource()
    own = cache(tmp_path / "f", source)
    own.images([ImageItem(moved)])
    assert source.encoded == []
    box = ImageItem(moved, (1.0, 2.0, 3.0, 4.0))
    assert torch.equal(own.images([box]), rows([box]))
    assert source.encoded == [box]
    shutil.copy(items[1].path, items[0].path)
    own.images(items[:1])
    assert len(source.encoded) == 2
    cache(tmp_path / "f", source, model="other").images([box])
    assert len(source.encoded) == 3


def test_an_interrupted_run_goes_on(tmp_path, items, monkeypatch):
    monkeypatch.setattr(feature_cache, "_ROWS", 100)
    with pytest.raises(KeyboardInterrupt):
        cache(tmp_path / "f", CountingSource(stop_after=6)).images(items)
    source = CountingSource()
    assert torch.equal(cache(tmp_path / "f", source).images(items), rows(items))
    assert source.encoded == items[6:]


def test_broken_files_are_reported_and_made_again(tmp_path, items, monkeypatch):
    monkeypatch.setattr(feature_cache, "_ROWS", 3)
    cache(tmp_path / "f", CountingSource()).images(items)
    first, second, third = sorted((tmp_path / "f").rglob("*.npy"))
    first.write_bytes(first.read_bytes()[:-5])
    second.write_bytes(b"")
    third.with_suffix(".tmp").write_bytes(b"half of a file that was being written")
    said = []
    source = CountingSource()
    own = cache(tmp_path / "f", source, report=said.append)
    assert len(said) == 2
    assert str(first) in said[0]
    assert torch.equal(own.images(items), rows(items))
    assert 0 < len(source.encoded) < 8


def test_features_of_another_width_are_not_used(tmp_path, items, monkeypatch):
    cache(tmp_path / "f", CountingSource()).images(items)
    said = []
    monkeypatch.setattr(Towers, "width", 6)
    cache(tmp_path / "f", CountingSource(), report=said.append)
    assert len(said) == 1
    assert "is broken and is not used" in said[0]


def test_images_that_cannot_be_read_do_not_lose_the_others(tmp_path, items):
    items[2].path.write_bytes(b"broken")
    items[6].path.unlink()
    source = CountingSource()
    own = cache(tmp_path / "f", source)
    with pytest.raises(UnreadableImagesError) as caught:
        own.images(items)
    assert caught.value.failures == {items[2]: "broken", items[6]: "No such file or directory"}
    good = [item for item in items if item not in caught.value.failures]
    done = list(source.encoded)
    assert torch.equal(own.images(good), rows(good))
    assert source.encoded == done
