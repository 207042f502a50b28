"""slipform's ClipLoss in place of open_clip's, in a plain training loop: the same numbers.

    python examples/clip_loss.py                       # a tiny model, made-up batches
    python examples/clip_loss.py --model ViT-B-32 --batch-size 64

Put your DataLoader in the place of `batches`. open_clip's loss is here to compare with.
"""

import argparse
import copy

import open_clip
import torch
from open_clip.loss import ClipLoss as OpenClipLoss
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

from slipform_kernels import ClipLoss


def tiny_model():
    vision = CLIPVisionCfg(image_size=32, layers=2, width=64, head_width=32, patch_size=8)
    text = CLIPTextCfg(context_length=16, vocab_size=1000, width=64, heads=2, layers=2)
    return CLIP(64, vision, text, output_dict=True)


def batches(steps, batch_size, image_size, context_length, vocab_size):
    for _ in range(steps):
        images = torch.randn(batch_size, 3, image_size, image_size)
        texts = torch.randint(1, vocab_size, (batch_size, context_length))
        yield images, texts


def train(model, loss_fn, data):
    """An ordinary loop; only `loss_fn` differs between the two runs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for images, texts in data:
        features = model(images, texts)  # image_features, text_features, logit_scale
        loss = loss_fn(**features, output_dict=True)["contrastive_loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="of open_clip; without it, a tiny one")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = open_clip.create_model(args.model, output_dict=True) if args.model else tiny_model()
    (size, *_) = model.visual.image_size if args.model else (32,)
    data = list(batches(args.steps, args.batch_size, size, model.context_length, model.vocab_size))
    theirs = train(copy.deepcopy(model), OpenClipLoss(), data)
    ours = train(model, ClipLoss(), data)

    print("step  open_clip  slipform")
    for step, (a, b) in enumerate(zip(theirs, ours, strict=True), 1):
        print(f"{step:4}  {a:9.6f}  {b:9.6f}")
    print(f"largest difference: {max(abs(a - b) for a, b in zip(theirs, ours, strict=True)):.1e}")


if __name__ == "__main__":
    main()
