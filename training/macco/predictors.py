"""What reconstructs a masked token from the other modality: cross-attention, without attention
between the masked tokens.

So only masked tokens need to be queries: predicting those alone gives what predicting all and
keeping those gives, at a small part of the cost.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MaskedTokens:
    """Where the n masked tokens of a batch are.

    A batch without any keeps one, which `is_real` says counts for nothing, so that every parameter
    takes part in every backward, as DDP wants it.

    mask: bool [N, S]. sample, position: int64 [n], in order. is_real: bool [n]. counts: int64 [N],
    of masked tokens.
    """

    def __init__(self, mask: Tensor) -> None:
        self.counts = mask.sum(1)
        kept = mask.clone()
        kept[0, 0] |= ~mask.any()
        self.sample, self.position = kept.nonzero(as_tuple=True)
        self.is_real = mask[self.sample, self.position]
        # Masked tokens of a sample lie side by side, padded to the largest number of them.
        self._slot = (kept.cumsum(1) - 1)[self.sample, self.position]
        self._shape = len(mask), int(kept.sum(1).max())

    def taken(self, tokens: Tensor) -> Tensor:
        """Those of tokens [N, S, ...], [n, ...]."""
        return tokens[self.sample, self.position]

    def padded(self, queries: Tensor) -> Tensor:
        """[n, D] as [N, Q, D], zeros where a sample has fewer than Q."""
        empty = queries.new_zeros(*self._shape, queries.shape[-1])
        return empty.index_put((self.sample, self._slot), queries)

    def packed(self, padded: Tensor) -> Tensor:
        """The inverse of `padded`."""
        return padded[self.sample, self._slot]

    def mean_of_samples(self, values: Tensor) -> Tensor:
        """Values [n], one a masked token -> [N], their means; 0 for a sample without any."""
        real = torch.where(self.is_real, values, 0.0)
        sums = real.new_zeros(len(self.counts)).index_add(0, self.sample, real)
        return sums / self.counts.clamp(min=1)


class CrossBlock(nn.Module):
    """x + attention(LN x, LN memory), then x + MLP(LN x); width D, MLP 4 D with exact GELU.

    Weights are drawn as CLIP's text transformer draws them, for a stack of `layers` blocks: of
    standard deviation D^-1/2 for queries, keys and values, D^-1/2 (2 layers)^-1/2 for what is added
    to x, (2 D)^-1/2 within the MLP. Biases are 0.
    """

    def __init__(self, width: int, *, heads: int, layers: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_norm = nn.LayerNorm(width)
        self.memory_norm = nn.LayerNorm(width)
        self.query_proj = nn.Linear(width, width)
        self.memory_proj = nn.Linear(width, 2 * width)
        self.out_proj = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)
        for linear, deviation in (
            (self.query_proj, width**-0.5),
            (self.memory_proj, width**-0.5),
            (self.out_proj, width**-0.5 * (2 * layers) ** -0.5),
            (self.c_fc, (2 * width) ** -0.5),
            (self.c_proj, width**-0.5 * (2 * layers) ** -0.5),
        ):
            nn.init.normal_(linear.weight, std=deviation)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """x [N, Q, D], memory [N, S, D] -> [N, Q, D]."""
        query = self._by_head(self.query_proj(self.query_norm(x)))
        key, value = self.memory_proj(self.memory_norm(memory)).chunk(2, dim=-1)
        attended = F.scaled_dot_product_attention(query, self._by_head(key), self._by_head(value))
        x = x + self.out_proj(attended.transpose(1, 2).flatten(2))
        return x + self.c_proj(F.gelu(self.c_fc(self.mlp_norm(x))))

    def _by_head(self, x: Tensor) -> Tensor:
        """[N, S, D] -> [N, heads, S, D / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _Predictor(nn.Module):
    """A stack of cross blocks and a LayerNorm, for masked tokens."""

    def __init__(self, width: int, *, layers: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads: got {heads}, expected a divisor of the width {width}")
        self.blocks = nn.ModuleList(
            CrossBlock(width, heads=heads, layers=layers) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def _states(self, queries: Tensor, memory: Tensor, masked: MaskedTokens) -> Tensor:
        """Queries [n, D] of masked tokens, memory [N, S, D] -> [n, D]."""
        x = masked.padded(queries)
        for block in self.blocks:
            x = block(x, memory)
        return self.norm(masked.packed(x))


class TextPredictor(_Predictor):
    """Masked words from the image. Its head, `vocabulary`, is a linear layer [V, D] with bias whose
    logits are never made: losses.masked_word_loss uses its parameters."""

    def __init__(self, width: int, *, layers: int, heads: int, vocabulary: int) -> None:
        super().__init__(width, layers=layers, heads=heads)
        self.vocabulary = nn.Linear(width, vocabulary)
        nn.init.xavier_uniform_(self.vocabulary.weight)
        nn.init.zeros_(self.vocabulary.bias)

    def forward(self, texts: Tensor, patches: Tensor, masked: MaskedTokens) -> Tensor:
        """Masked captions [N, L, D], full patches [N, P, D] -> [n, D], before the vocabulary."""
        return self._states(masked.taken(texts), patches, masked)


class ImagePredictor(_Predictor):
    """Pixels of masked patches, `pixels` of them a patch, from the caption.

    grid: rows and columns of patches.
    """

    positions: Tensor

    def __init__(
        self, width: int, *, layers: int, heads: int, grid: tuple[int, int], pixels: int
    ) -> None:
        super().__init__(width, layers=layers, heads=heads)
        self.embed = nn.Linear(width, width)
        self.pixels = nn.Linear(width, pixels)
        self.register_buffer("positions", grid_positions(grid, width), persistent=False)

    def forward(self, patches: Tensor, texts: Tensor, masked: MaskedTokens) -> Tensor:
        """Masked patches [N, P, D], full captions [N, L, D] -> [n, pixels]."""
        queries = self.embed(masked.taken(patches))
        queries = queries + self.positions[masked.position].to(queries.dtype)
        return self.pixels(self._states(queries, texts, masked))


def grid_positions(grid: tuple[int, int], width: int) -> Tensor:
    """Fixed sine-cosine positions of a grid's cells, fp32 [rows * columns, width], row by row.

    One half is of the row and one of the column, each sin and then cos of the number times
    10000^(-k / K), k = 0 .. K - 1, K = width / 4 (MAE, arXiv 2111.06377, on any grid).
    Raises ValueError for a width that 4 does not divide.
    """
    if width % 4:
        raise ValueError(f"width: got {width}, expected a multiple of 4")
    count = width // 4
    frequencies = 10000.0 ** (-torch.arange(count, dtype=torch.float64) / count)
    halves = []
    for number in torch.meshgrid(*(torch.arange(n) for n in grid), indexing="ij"):
        angles = number.flatten()[:, None] * frequencies
        halves += [angles.sin(), angles.cos()]
    return torch.cat(halves, dim=1).float()
