"""Hard captions mined from captions, and a model trained with them: NegCLIP beside Cement.

    python examples/cement.py
    python examples/cement.py --margin 0.2 --steps 100

Images and captions are composed scenes. For files of your own there are the commands
`slipform mine` and `slipform train --loss cement`, which do the same at any size.
"""

import argparse
import copy

import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

from slipform_kernels import CementLoss, NegClipLoss, gradient_shares
from slipform_training.concreteplant import ConcretePlant, MinerOptions
from slipform_training.data import ReducedTokenizer
from slipform_training.scenes import Scenes, normalise


def mined_scenes(count):
    """Images, token ids, and one mined hard caption each, with its concreteness."""
    scenes = Scenes().batch(range(count))
    mined = ConcretePlant(MinerOptions()).mine(scenes.captions).hard
    print(f"{scenes.captions[0]!r}  ->  {mined[0][0].hard_caption!r}")
    present = torch.tensor([bool(found) for found in mined])
    hard = [found[0].hard_caption if found else "" for found in mined]
    texts = [*scenes.captions, *hard]
    tokenizer = ReducedTokenizer(" ".join(texts).split(), context_length=32)
    tokens = tokenizer(texts).split(count)
    concreteness = torch.tensor([found[0].concreteness if found else 1.0 for found in mined])
    return tokenizer, normalise(scenes.tensor()), *tokens, present, concreteness


def train(model, loss_fn, data, steps):
    images, texts, hard, present, concreteness = data
    extra = {"concreteness": concreteness} if isinstance(loss_fn, CementLoss) else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for _ in range(steps):
        features = {
            "image_features": model.encode_image(images, normalize=True),
            "text_features": model.encode_text(texts, normalize=True),
            "hard_text_features": model.encode_text(hard, normalize=True),
            "hard_mask": present,  # False where no hard caption was found
            "logit_scale": model.logit_scale.exp(),
            **extra,
        }
        loss = loss_fn(**features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    shares = gradient_shares(**loss_fn.layout(**features))
    image, text, other = list(features.values())[:3]
    gap = ((image * text).sum(1) - (image * other).sum(1))[present].mean()
    return loss.item(), gap.item(), (shares.hard.sum() / shares.positive.sum()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenes", type=int, default=128, help="in the one batch")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--margin", type=float, default=0.2, help="Cement's, in cosine units")
    args = parser.parse_args()

    torch.manual_seed(0)
    tokenizer, *data = mined_scenes(args.scenes)
    vision = CLIPVisionCfg(image_size=64, layers=2, width=64, head_width=32, patch_size=16)
    text = CLIPTextCfg(32, tokenizer.vocab_size, width=64, heads=2, layers=2)
    model = CLIP(64, vision, text)
    print("cos(image, caption) - cos(image, hard caption), and the pull that hard captions have:")
    for loss_fn in (NegClipLoss(), CementLoss(margin=args.margin)):
        loss, gap, share = train(copy.deepcopy(model), loss_fn, data, args.steps)
        print(f"{type(loss_fn).__name__:12} loss {loss:.3f}  gap {gap:.3f}  pull {share:.0%}")


if __name__ == "__main__":
    main()
