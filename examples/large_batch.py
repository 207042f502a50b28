"""One contrastive batch larger than memory allows: no similarity matrix, encoders in chunks.

    python examples/large_batch.py
    python examples/large_batch.py --batch-size 32768 --chunk-size 512

`GradientCache` encodes the batch in chunks without a graph, takes the loss over all of it, and
encodes each chunk once more to carry its gradients on. `ClipLoss` never stores the matrix.
"""

import argparse
import resource
import sys

import torch
from torch import nn

from slipform_kernels import ClipLoss
from slipform_training.finetune import GradientCache


class TwoTowers(nn.Module):
    """Stands for your model: features by name, as open_clip's with output_dict=True."""

    def __init__(self, width=64):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(48, 256), nn.GELU(), nn.Linear(256, width))
        self.text = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, width))
        self.log_scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, images, texts):
        unit = nn.functional.normalize
        return {
            "image_features": unit(self.image(images), dim=-1),
            "text_features": unit(self.text(texts), dim=-1),
            "logit_scale": self.log_scale.exp(),
        }


def peak_mib():
    """The most memory that this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--chunk-size", type=int, default=256)
    args = parser.parse_args()

    torch.manual_seed(0)
    model, loss_fn = TwoTowers(), ClipLoss()
    cache = GradientCache(model, loss_fn, chunk_size=args.chunk_size)
    batch = {"images": torch.randn(args.batch_size, 48), "texts": torch.randn(args.batch_size, 32)}

    # The same gradients as without chunks, on a part that is small enough for both.
    part = {name: value[: 2 * args.chunk_size] for name, value in batch.items()}
    loss_fn(**model(**part)).backward()
    plain = gradients(model)
    model.zero_grad()
    cache.backward(part)
    difference = (gradients(model) - plain).norm() / plain.norm()
    print(f"gradients in chunks and at once differ by {difference:.1e} of their norm")

    model.zero_grad()
    before = peak_mib()
    loss = cache.backward(batch)  # then optimizer.step(), as ever
    print(f"batch of {args.batch_size}: loss {loss:.4f}")
    print(f"memory grew by {peak_mib() - before:.0f} MiB")
    print(f"its matrix alone in fp32: {4 * args.batch_size**2 / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
