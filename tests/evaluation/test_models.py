"""Models behind the evaluation: open_clip's, checkpoints, transformers'; and their hashes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import open_clip
import pytest
import torch
from PIL import Image

from slipform_training.commands.models import open_model as open_command_model
from slipform_training.evaluation.encoder import (
    ImageItem,
    ModelSource,
    UnreadableImagesError,
)
from slipform_training.evaluation.models import model_hash, open_model
from slipform_training.train.model import ActivationMismatchError, create_model, save_weights
from support.train_files import NAME, TINY, draw_image, tiny_model

TEXTS = ["a red cube", "", "two cats on a mat beside a very long river that " * 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_model(folder)
    parts = create_model(str(folder / f"{NAME}.json"))
    save_weights(folder / "model.pt", parts.model, parts.info)
    for number in range(7):
        draw_image(folder / f"{number}.jpg", number)
    return folder


def test_features_are_open_clips_own(folder):
    items = [ImageItem(folder / f"{number}.jpg") for number in range(7)]
    items[3] = items[3]._replace(box=(4.0, 2.0, 30.4, 29.6))
    source = ModelSource(open_model(str(folder / "model.pt"), device="cpu"), batch_size=3)
    model, _, prepare = open_clip.create_model_and_transforms(
        NAME, pretrained=str(folder / "model.pt")
    )
    model.eval()
    images, texts = source.images(items), source.texts(TEXTS)
    for row, item in enumerate(items):
        image = Image.open(item.path).convert("RGB")
        image = image.crop((4, 2, 30, 30)) if item.box else image
        with torch.no_grad():
            expected = model.encode_image(prepare(image).unsqueeze(0), normalize=True)[0]
        assert torch.allclose(images[row], expected, atol=1e-5)
    with torch.no_grad():
        expected = model.encode_text(open_clip.get_tokenizer(NAME)(TEXTS), normalize=True)
    assert torch.allclose(texts, expected, atol=1e-5)
    assert images.dtype == texts.dtype == torch.float32
    assert source.images([]).shape == source.texts([]).shape == (0, 16)


def test_workers_change_nothing(folder):
    items = [ImageItem(folder / f"{number}.jpg") for number in range(7)]
    towers = open_model(str(folder / "model.pt"), device="cpu")
    seen = []
    alone = ModelSource(towers, batch_size=2).images(items)
    others = ModelSource(
        towers, batch_size=2, workers=2, progress=lambda *step: seen.append(step)
    ).images(items)
    assert torch.equal(alone, others)
    assert seen == [("images", done, 7) for done in (2, 4, 6, 7)]


def test_images_that_fail_are_named_together(folder, tmp_path):
    (tmp_path / "bad.jpg").write_text("no image")
    items = [
        ImageItem(folder / "0.jpg"),
        ImageItem(tmp_path / "bad.jpg"),
        ImageItem(folder / "1.jpg", (5.0, 5.0, 5.0, 9.0)),
    ]
    with pytest.raises(UnreadableImagesError, match=r"bad\.jpg.*and 1 more") as caught:
        ModelSource(open_model(str(folder / "model.pt"), device="cpu"), batch_size=2).images(items)
    assert list(caught.value.failures) == items[1:]
    assert "is empty" in caught.value.failures[items[2]]


def test_an_activation_mismatch_is_refused(folder, tmp_path):
    plain = tmp_path / "tiny-plain.json"
    plain.write_text(json.dumps({**TINY, "quick_gelu": False}))
    with pytest.raises(ActivationMismatchError, match="quick_gelu"):
        open_model(str(plain), pretrained=str(folder / "model.pt"), device="cpu")
    with pytest.raises(ActivationMismatchError):
        open_model("ViT-B-32", pretrained="openai", device="cpu")


@pytest.mark.parametrize(
    ("name", "pretrained", "message"),
    [
        ("no-such-model", None, "open_clip does not know"),
        ("lost.pt", None, "which is no file"),
        ("hf:nowhere", "openai", "beside hf:nowhere, expected none"),
    ],
)
def test_unusable_models_are_refused(name, pretrained, message):
    with pytest.raises(ValueError, match=message):
        open_model(name, pretrained=pretrained, device="cpu")


def test_settings_are_checked(folder):
    towers = open_model(str(folder / "model.pt"), device="cpu")
    with pytest.raises(ValueError, match="precision: got 'fp8'"):
        ModelSource(towers, precision="fp8")
    with pytest.raises(ValueError, match="batch_size: got 0"):
        ModelSource(towers, batch_size=0)


def test_the_hash_covers_what_features_depend_on(folder, tmp_path):
    name = str(folder / f"{NAME}.json")
    towers = open_model(str(folder / "model.pt"), device="cpu")
    own = model_hash(towers, precision="fp32")
    again = open_model(name, pretrained=str(folder / "model.pt"), device="cpu")
    assert model_hash(again, precision="fp32") == own
    found = {own, model_hash(towers, precision="bf16")}
    for key in ("activation", "architecture", "transform", "tokenizer"):
        other = {**towers.info, key: "another"}
        found.add(model_hash(_with_info(towers, other), precision="fp32"))
    with torch.no_grad():
        next(towers.model.parameters()).view(-1)[0] += 1e-3
    found.add(model_hash(towers, precision="fp32"))
    assert len(found) == 7
    drawn = [
        model_hash(open_model(name, device="cpu", seed=s), precision="fp32") for s in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert " at 0x" not in towers.info["transform"]


def _with_info(towers, info):
    from dataclasses import replace

    return replace(towers, info=info)


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A tiny CLIP of transformers with a processor, made offline."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hf")
    torch.manual_seed(0)
    shared = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2}
    text = {**shared, "num_attention_heads": 4, "max_position_embeddings": 20, "vocab_size": 49408}
    vision = {**shared, "num_attention_heads": 4, "image_size": 30, "patch_size": 15}
    config = transformers.CLIPConfig(
        text_config={**text, "bos_token_id": 49406, "eos_token_id": 49407},
        vision_config=vision,
        projection_dim=24,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    _save_processor(transformers, folder)
    return folder


def _save_processor(transformers, folder):
    simple = open_clip.SimpleTokenizer()
    (folder / "vocab.json").write_text(json.dumps(simple.encoder))
    merges = [" ".join(pair) for pair, _ in sorted(simple.bpe_ranks.items(), key=lambda x: x[1])]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    tokenizer = transformers.CLIPTokenizer(
        vocab=str(folder / "vocab.json"),
        merges=str(folder / "merges.txt"),
        unk_token="<end_of_text>",
        bos_token="<start_of_text>",
        eos_token="<end_of_text>",
        pad_token="<end_of_text>",
    )
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 30}, crop_size={"height": 30, "width": 30}
    )
    transformers.CLIPProcessor(images, tokenizer).save_pretrained(folder)


def test_transformers_clip(folder, clip_folder):
    import transformers

    towers = open_model(f"hf:{clip_folder}", device="cpu")
    source = ModelSource(towers, batch_size=2)
    items = [ImageItem(folder / f"{number}.jpg") for number in range(3)]
    images, texts = source.images(items), source.texts(TEXTS)
    model = transformers.CLIPModel.from_pretrained(clip_folder).eval()
    processor = transformers.CLIPProcessor.from_pretrained(clip_folder)
    inputs = processor(
        text=TEXTS,
        images=[Image.open(item.path).convert("RGB") for item in items],
        padding=True,
        truncation=True,
        max_length=20,
        return_tensors="pt",
    )
    with torch.no_grad():
        found = model(**inputs)
    assert torch.allclose(images, found.image_embeds, atol=1e-5)
    assert torch.allclose(texts, found.text_embeds, atol=1e-5)
    assert images.shape == (3, 24)
    assert towers.info["activation"] == "quick_gelu"
    same = model_hash(open_model(f"hf:{clip_folder}", device="cpu"), precision="fp32")
    assert model_hash(towers, precision="fp32") == same


def test_a_folder_without_a_clip_is_refused(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="cannot be loaded"):
        open_model(f"hf:{tmp_path}", device="cpu")


def test_a_checkpoint_of_a_json_model_opens_where_its_name_is_unknown(tmp_path):
    """In another process, which has not seen the json file."""
    name = "tiny-only-here"
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(TINY))
    parts = create_model(str(path))
    save_weights(tmp_path / "model.pt", parts.model, parts.info)
    path.unlink()
    code = (
        "import sys, torch; from slipform_training.train.model import load_model\n"
        "parts = load_model(sys.argv[1])\n"
        "print(parts.info['model'], sum(p.numel() for p in parts.model.parameters()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pt")],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    weights = sum(value.numel() for value in parts.model.parameters())
    assert done.stdout.split() == [name, str(weights)]


def test_random_weights_follow_from_the_seed_in_the_probe_too(folder):
    def weights(seed):
        arguments = argparse.Namespace(model=str(folder / f"{NAME}.json"), seed=seed)
        return open_command_model(arguments).model.text_projection.detach()

    first = weights(1)
    torch.rand(5)
    assert torch.equal(weights(1), first)
    assert not torch.equal(weights(2), first)


def test_texts_beyond_the_context_are_counted(folder):
    source = ModelSource(open_model(str(folder / "model.pt"), device="cpu"))
    source.texts([*TEXTS, "word " * 14, "word " * 15])
    assert source.cut == 2  # the context has 16 places, two of them for start and end
