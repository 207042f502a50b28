"""The predictors: gathering, attention, positions and initialisation against plain definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu

pytest.importorskip("open_clip_train")

from slipform_training.macco.predictors import (
    CrossBlock,
    ImagePredictor,
    MaskedTokens,
    TextPredictor,
    grid_positions,
)

N, S, M, D, HEADS = 6, 9, 7, 16, 4


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def some_mask() -> torch.Tensor:
    """Samples with none, one, some and all tokens masked."""
    mask = torch.rand(N, S, generator=torch.Generator().manual_seed(3)) < 0.3
    mask[0], mask[1], mask[2] = False, False, True
    mask[1, 5] = True
    return mask


def test_masked_tokens_are_packed_in_order_and_come_back():
    mask = some_mask()
    masked = MaskedTokens(mask)
    want = [(n, p) for n in range(N) for p in range(S) if mask[n, p]]
    assert list(zip(masked.sample.tolist(), masked.position.tolist(), strict=True)) == want
    assert masked.is_real.all()
    tokens = torch.randn(N, S, D)
    taken = masked.taken(tokens)
    padded = masked.padded(taken)
    assert padded.shape == (N, S, D)  # sample 2 has them all
    for n in range(N):
        own = tokens[n, mask[n]]
        assert torch.equal(padded[n, : len(own)], own)
        assert not padded[n, len(own) :].any()
    assert torch.equal(masked.packed(padded), taken)


def test_means_of_samples():
    mask = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])
    means = MaskedTokens(mask).mean_of_samples(torch.tensor([1.0, 4.0, 7.0]))
    assert means.tolist() == [2.5, 0.0, 7.0]


def test_without_masked_tokens_one_is_kept_that_counts_for_nothing():
    masked = MaskedTokens(torch.zeros(2, 3, dtype=torch.bool))
    assert masked.is_real.tolist() == [False]
    assert masked.mean_of_samples(torch.tensor([torch.inf])).tolist() == [0.0, 0.0]
    values = torch.ones(1, requires_grad=True)
    masked.mean_of_samples(values).sum().backward()
    assert values.grad.tolist() == [0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gathering_before_the_predictor_is_gathering_after_it(dtype):
    """All positions as queries give at masked ones what masked ones alone do; gradients too."""
    torch.manual_seed(0)
    mask, every = some_mask(), torch.ones(N, S, dtype=torch.bool)
    text = TextPredictor(D, layers=2, heads=HEADS, vocabulary=11).to(dtype)
    image = ImagePredictor(D, layers=3, heads=HEADS, grid=(3, 3), pixels=12).to(dtype)
    for predictor in (text, image):
        results = []
        for queried in (mask, every):
            queries = torch.randn(N, S, D, generator=torch.Generator().manual_seed(1)).to(dtype)
            memory = torch.randn(N, M, D, generator=torch.Generator().manual_seed(2)).to(dtype)
            inputs = queries.requires_grad_(), memory.requires_grad_()
            out = predictor(*inputs, MaskedTokens(queried))
            if queried is every:
                out = out.view(N, S, -1)[mask]
            weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
            used = [p for n, p in predictor.named_parameters() if "vocabulary" not in n]
            grads = torch.autograd.grad((weight * out).sum(), [*inputs, *used])
            results.append([out, *grads])
        bar = 1e-6 if dtype == torch.float32 else 1e-13
        for before, after in zip(*results, strict=True):
            assert (before - after).norm() <= bar * after.norm()


def test_a_block_is_pre_norm_cross_attention_and_an_mlp():
    torch.manual_seed(0)
    block = CrossBlock(D, heads=HEADS, layers=2).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    x, memory = torch.randn(N, 3, D).double(), torch.randn(N, M, D).double()
    attention = nn.MultiheadAttention(D, HEADS, batch_first=True).double()
    with torch.no_grad():
        weights = block.query_proj.weight, block.memory_proj.weight
        biases = block.query_proj.bias, block.memory_proj.bias
        attention.in_proj_weight.copy_(torch.cat(weights))
        attention.in_proj_bias.copy_(torch.cat(biases))
        attention.out_proj.load_state_dict(block.out_proj.state_dict())
    keys = block.memory_norm(memory)
    want = x + attention(block.query_norm(x), keys, keys)[0]
    hidden = block.mlp_norm(want) @ block.c_fc.weight.T + block.c_fc.bias
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    assert torch.allclose(hidden, gelu(block.c_fc(block.mlp_norm(want))))
    want = want + hidden @ block.c_proj.weight.T + block.c_proj.bias
    torch.testing.assert_close(block(x, memory), want, rtol=1e-12, atol=1e-12)


def test_positions_of_a_rectangular_grid():
    """Written out cell by cell; two cells never share a position."""
    rows, columns, width = 3, 5, 16
    found = grid_positions((rows, columns), width)
    assert found.shape == (15, 16)
    for row in range(rows):
        for column in range(columns):
            want = []
            for place in (row, column):
                angles = [place / 10000 ** (k / 4) for k in range(4)]
                want += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
            torch.testing.assert_close(found[row * columns + column], torch.tensor(want))
    assert torch.cdist(found, found).add(torch.eye(15)).min() > 0.1
    with pytest.raises(ValueError, match="width: got 18, expected a multiple of 4"):
        grid_positions((2, 2), 18)


def test_patches_are_told_apart_by_their_positions_alone():
    torch.manual_seed(0)
    predictor = ImagePredictor(D, layers=1, heads=HEADS, grid=(3, 3), pixels=12)
    alike = torch.ones(1, S, D)
    out = predictor(alike, torch.randn(1, M, D), MaskedTokens(torch.ones(1, S, dtype=torch.bool)))
    assert (out[0] - out[4]).abs().max() > 1e-3
    assert "positions" not in predictor.state_dict()


def test_initialisation():
    torch.manual_seed(0)
    width, layers = 64, 3
    text = TextPredictor(width, layers=layers, heads=8, vocabulary=1000)
    expected = {
        "query_proj": width**-0.5,
        "memory_proj": width**-0.5,
        "out_proj": width**-0.5 * (2 * layers) ** -0.5,
        "c_fc": (2 * width) ** -0.5,
        "c_proj": width**-0.5 * (2 * layers) ** -0.5,
    }
    for block in text.blocks:
        for name, deviation in expected.items():
            linear = block.get_submodule(name)
            assert linear.weight.std().item() == pytest.approx(deviation, rel=0.05), name
            assert not linear.bias.any()
    bound = math.sqrt(6 / (1000 + width))
    assert 0.98 * bound < text.vocabulary.weight.abs().max() <= bound
    assert not text.vocabulary.bias.any()


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="heads: got 5, expected a divisor of the width 16"):
        TextPredictor(16, layers=1, heads=5, vocabulary=3)
