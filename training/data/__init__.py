"""Samples, tokens and batches for training."""

from slipform_training.data.batches import ShuffledBatches, epoch_order, spaced
from slipform_training.data.stream import Stream
from slipform_training.data.tokenizer import ReducedTokenizer

__all__ = ["ReducedTokenizer", "ShuffledBatches", "Stream", "epoch_order", "spaced"]
