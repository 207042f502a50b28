"""Zero-shot detectors: tiny ones with random weights, made and loaded as real ones are."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from PIL import Image

pytest.importorskip("transformers")

import transformers

from slipform_training.macco.boxes import Box
from slipform_training.macco.rows import Phrase
from slipform_training.macco.zero_shot import ZeroShotDetector
from slipform_training.mining.rows import InputError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "man", "riding", "red", "car", "dog"]


def letters_tokenizer():
    """CLIP's tokenizer whose vocabulary is letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    # The model takes a text that begins with token 0 for padding.
    tokens = [*letters, *(one + "</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    return transformers.CLIPTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[],
        model_max_length=16,
    )


def make_owl():
    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = {
        "vocab_size": 54,
        "max_position_embeddings": 16,
        "bos_token_id": 52,
        "eos_token_id": 53,
        "pad_token_id": 53,
    }
    config = transformers.Owlv2Config(
        text_config={**small, **text},
        vision_config={**small, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = transformers.Owlv2ForObjectDetection(config)
    # Random weights saturate; without the last layer, boxes are the patches' own.
    torch.nn.init.zeros_(model.box_head.dense2.weight)
    torch.nn.init.zeros_(model.box_head.dense2.bias)
    images = transformers.Owlv2ImageProcessor(size={"height": 32, "width": 32})
    return model, transformers.Owlv2Processor(images, letters_tokenizer())


def make_grounding_dino():
    backbone = transformers.SwinConfig(
        image_size=32,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=2,
        out_features=["stage2", "stage3", "stage4"],
    )
    text = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    config = transformers.GroundingDinoConfig(
        backbone_config=backbone,
        text_config=text,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=7,
        num_feature_levels=4,
        disable_custom_kernels=True,
    )
    model = transformers.GroundingDinoForObjectDetection(config)
    size = {"shortest_edge": 96, "longest_edge": 224}
    images = transformers.GroundingDinoImageProcessor(size=size)
    tokenizer = transformers.BertTokenizer(
        vocab={word: number for number, word in enumerate(WORDS)}
    )
    return model, transformers.GroundingDinoProcessor(images, tokenizer)


@pytest.fixture(scope="module", params=[make_owl, make_grounding_dino], ids=["owl", "dino"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector")
    torch.manual_seed(0)
    detector, processor = request.param()
    detector.save_pretrained(folder)
    processor.save_pretrained(folder)
    pictures = {
        "a.png": ((60, 40), "red"),
        "b.png": ((40, 90), "blue"),
        "c.png": ((60, 40), "green"),
    }
    for name, (size, colour) in pictures.items():
        picture = Image.new("RGB", size, colour)
        picture.paste("white", (5, 5, 20, 30))
        picture.save(folder / name)
    return folder


def detector(model, **changes):
    return ZeroShotDetector(
        str(model), images=model, **{"device": "cpu", "threshold": 0.0, **changes}
    )


def asked(*texts):
    return [Phrase(text, "relation") for text in texts]


def test_boxes_lie_in_the_image_and_above_the_threshold(model):
    every = next(detector(model).detect(["a.png"], [asked("man riding")]))[0]
    assert every
    for box in every:
        assert 0 <= box.x1 < box.x2 <= 60
        assert 0 <= box.y1 < box.y2 <= 40
        assert 0 < box.score <= 1
    scores = sorted(box.score for box in every)
    middle = (scores[0] + scores[-1]) / 2
    above = next(detector(model, threshold=middle).detect(["a.png"], [asked("man riding")]))[0]
    assert above == [box for box in every if box.score > middle]
    assert 0 < len(above) < len(every)


def test_a_box_is_the_models_own_in_pixels_of_the_image(model):
    """Against the model's raw output: centre and size of each query to corners."""
    found = next(detector(model).detect(["b.png"], [asked("red car")]))[0]
    processor = transformers.AutoProcessor.from_pretrained(model)
    plain = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(model).eval()
    padding = "max_length" if plain.config.model_type == "owlv2" else True
    with Image.open(model / "b.png") as picture:
        inputs = processor(
            images=[picture], text=[["red car"]], return_tensors="pt", padding=padding
        )
    with torch.no_grad():
        outputs = plain(**inputs)
    scores = outputs.logits[0].sigmoid().amax(-1).tolist()
    # Owlv2 pads images to squares, at the right and the bottom.
    across, down = (90, 90) if plain.config.model_type == "owlv2" else (40, 90)
    expected = []
    for score, (x, y, width, height) in zip(scores, outputs.pred_boxes[0].tolist(), strict=True):
        left, right = max((x - width / 2) * across, 0), min((x + width / 2) * across, 40)
        top, bottom = max((y - height / 2) * down, 0), min((y + height / 2) * down, 90)
        if left < right and top < bottom:  # else it lies in the padding
            expected.append((left, top, right, bottom, score))
    assert len(found) == len(expected) > 3
    for one, other in zip(found, expected, strict=True):
        assert list(one) == pytest.approx(list(other), abs=1e-3)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_every_phrase_gets_its_own_boxes_in_batches_of_any_size(model, batch_size):
    # Of one size: Grounding DINO's image tower sees the padding of smaller images in a batch.
    images = ["a.png", "c.png", "c.png", "a.png"]
    phrases = [asked("man", "red car"), [], asked("dog"), asked("car", "man riding", "red")]
    together = list(detector(model, batch_size=batch_size).detect(images, phrases))
    assert [len(boxes) for boxes in together] == [2, 0, 1, 3]
    alone = detector(model, batch_size=1)
    for image, wanted, boxes in zip(images, phrases, together, strict=True):
        for one, found in zip(wanted, boxes, strict=True):
            (expected,) = next(alone.detect([image], [[one]]))
            assert len(found) == len(expected)
            for a, b in zip(sorted(found), sorted(expected), strict=True):
                assert list(a) == pytest.approx(list(b), abs=2e-2)


def test_an_image_that_cannot_be_read_is_named(model):
    with pytest.raises(InputError, match=r"gone\.png: missing file"):
        list(detector(model).detect(["gone.png"], [asked("man")]))


def test_options_out_of_range_and_what_is_no_detector(model, tmp_path):
    with pytest.raises(ValueError, match=r"threshold: got 1\.5, expected"):
        detector(model, threshold=1.5)
    with pytest.raises(ValueError, match="batch_size: got 0, expected at least 1"):
        detector(model, batch_size=0)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(RuntimeError, match=f"detector: {tmp_path} cannot be loaded"):
        detector(tmp_path)


def test_without_transformers_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(RuntimeError, match=r"install slipform-kernels\[boxes\]"):
        ZeroShotDetector("any", images=tmp_path)


def test_a_box_has_four_corners_and_a_score():
    assert Box(1, 2, 3, 4).score == 1.0
