"""Run by a fresh environment's Python: import, doctor, a training step; with [train], a run.

    python -I one_step.py VERSION[train]

Prints a JSON object at the end. An assertion that fails says what is wrong with the install.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

COMMAND = Path(sys.executable).with_name("slipform")
MODEL = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
CAPTIONS = ("a red cube", "a blue ball", "a cat on a mat", "a boat at sea")


def check_files(version: str) -> None:
    """The package lies in this environment, whole, and is of the version that was built."""
    prefix = Path(sys.prefix).resolve()
    found = metadata.version("slipform-kernels")
    assert found == version, f"got version {found}, expected {version}"
    for package in ("slipform_kernels", "slipform_training"):
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"{package}: not installed"
        folder = Path(str(spec.origin)).resolve().parent
        assert prefix in folder.parents, f"{package}: got {folder}, expected it in {prefix}"
        assert (folder / "py.typed").is_file(), f"{package}: no py.typed"
    files = metadata.files("slipform-kernels") or []
    assert any(path.name == "LICENSE" for path in files), "the licence is not installed"


def check_doctor() -> str:
    """`slipform doctor`: the line on the C++ backend, where the report holds no failure."""
    report = subprocess.run([COMMAND, "doctor"], capture_output=True, text=True, check=True).stdout
    for word in ("FAILS", "WRONG RESULTS", "\n  failed", "cannot be imported"):
        assert word not in report, report
    lines = [" ".join(line.split()) for line in report.splitlines()]
    assert "torch (any device) available" in lines, report
    (line,) = (line for line in report.splitlines() if "native (CPU)" in line)
    return line.split(maxsplit=2)[2]


def check_step() -> str:
    """One step of SGD on a linear model: the loss is torch's cross-entropy, and it falls.

    Returns torch's version.
    """
    import torch

    from slipform_kernels import ClipLoss

    torch.manual_seed(0)
    model = torch.nn.Linear(24, 16)
    images, texts = torch.randn(2, 64, 24)
    target = torch.arange(64)

    def features() -> list[torch.Tensor]:
        return [torch.nn.functional.normalize(model(x), dim=-1) for x in (images, texts)]

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    image, text = features()
    logits = 10 * image @ text.T
    expected = [torch.nn.functional.cross_entropy(x, target) for x in (logits, logits.T)]
    before = ClipLoss()(image, text, torch.tensor(10.0))
    torch.testing.assert_close(before, sum(expected) / 2, rtol=1e-5, atol=1e-5)
    before.backward()
    optimizer.step()
    assert ClipLoss()(*features(), torch.tensor(10.0)) < before
    return torch.__version__


def check_open_clip_step(folder: Path) -> None:
    """A step on a model of open_clip with the loss in its place: same value, weights that move."""
    import open_clip
    import torch
    from open_clip.loss import ClipLoss as OpenClipLoss

    from slipform_kernels import ClipLoss

    open_clip.add_model_config(folder / "tiny.json")
    model = open_clip.create_model("tiny", output_dict=True)
    tokens = open_clip.get_tokenizer("tiny")(list(CAPTIONS))
    features = model(torch.randn(len(CAPTIONS), 3, 32, 32), tokens)
    losses = ClipLoss()(**features, output_dict=True)
    torch.testing.assert_close(
        losses["contrastive_loss"], OpenClipLoss()(**features), rtol=1e-5, atol=1e-5
    )
    before = model.visual.proj.detach().clone()
    losses["contrastive_loss"].backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert not torch.equal(model.visual.proj, before)


def check_train(folder: Path) -> None:
    """`slipform train`, one step on files of this folder, ends in a model."""
    from PIL import Image

    rows = []
    for number, caption in enumerate(CAPTIONS):
        Image.new("RGB", (40, 36), (60 * number, 90, 120)).save(folder / f"{number}.jpg")
        rows.append(json.dumps({"id": str(number), "image": f"{number}.jpg", "caption": caption}))
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    files = {"model": "tiny.json", "data": "data.jsonl", "images": "", "out": "run"}
    flags = [word for name, file in files.items() for word in (f"--{name}", folder / file)]
    flags += ["--loss", "clip", "--batch-size", "4", "--steps", "1", "--no-progress"]
    run = subprocess.run([COMMAND, "train", *flags], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (folder / "run" / "model.pt").is_file(), run.stdout + run.stderr


def main() -> None:
    version, _, extra = sys.argv[1].partition("[")
    check_files(version)
    found = {"doctor": check_doctor(), "torch": check_step(), "steps": "linear model"}
    if extra == "train]":
        folder = Path.cwd()
        (folder / "tiny.json").write_text(json.dumps(MODEL))
        check_open_clip_step(folder)
        check_train(folder)
        found["steps"] = "open_clip model, slipform train"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
