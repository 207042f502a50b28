"""open_clip's byte-pair encoding over a reduced vocabulary, for small models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

STOCK_VOCABULARY = 49408


@cache
def _stock() -> Any:
    try:
        from open_clip.tokenizer import SimpleTokenizer
    except ImportError as error:
        raise RuntimeError(
            "the package open_clip_torch is missing; install slipform-kernels[train]"
        ) from error
    return SimpleTokenizer()


class ReducedTokenizer:
    """Token ids of open_clip's stock tokenizer, renumbered without gaps.

    The table is monotone: a larger stock id stays the larger one. So the end-of-text id is the
    largest, and open_clip's text tower, which pools where the id is largest, works unchanged. Id 0
    pads, as in open_clip. ``stock`` is the tokenizer whose pieces it renumbers.

    Args:
        words: words or whole texts; their pieces are the vocabulary.
        context_length: tokens in a row, start and end of text included.
        truncate: cut texts that are too long (the last place stays end-of-text) and count them in
            ``over_long``, instead of raising.

    Raises:
        ValueError: no words, or context_length below 3.
        RuntimeError: open_clip_torch is not installed.
    """

    def __init__(
        self, words: Iterable[str], *, context_length: int = 32, truncate: bool = False
    ) -> None:
        if context_length < 3:
            raise ValueError(f"context_length must be 3 or more, got {context_length}")
        stock = _stock()
        self.stock = stock
        self._encode_stock = stock.encode
        ids = {piece for word in set(words) for piece in self._encode_stock(word)}
        if not ids:
            raise ValueError("words must hold at least one word, got none")
        kept = sorted(ids | {0, stock.sot_token_id, stock.eot_token_id})
        self._table = {old: new for new, old in enumerate(kept)}
        self.vocab_size = len(kept)
        self.sot_id = self.vocab_size - 2
        self.eot_id = self.vocab_size - 1
        self.context_length = context_length
        self.truncate = truncate
        self.over_long = 0
        self._pieces_of: dict[str, list[int]] = {}

    def __call__(self, texts: str | Sequence[str]) -> torch.Tensor:
        """Encodes texts.

        Args:
            texts: one text or B of them.

        Returns:
            int64 ``[B, context_length]``: start of text, the pieces, end of text, zeros.

        Raises:
            ValueError: a word outside the vocabulary, named; a text that is too long where
                ``truncate`` is off.
        """
        if isinstance(texts, str):
            texts = [texts]
        out = torch.zeros(len(texts), self.context_length, dtype=torch.int64)
        for row, text in enumerate(texts):
            pieces = self._pieces(text)
            if len(pieces) > self.context_length - 2:
                if not self.truncate:
                    raise ValueError(
                        f"texts must have at most {self.context_length - 2} pieces "
                        f"(context_length - 2), got {len(pieces)} in {text!r}"
                    )
                self.over_long += 1
                pieces = pieces[: self.context_length - 2]
            ids = [self.sot_id, *pieces, self.eot_id]
            out[row, : len(ids)] = torch.tensor(ids)
        return out

    def longest(self, texts: Iterable[str]) -> int:
        """The context_length that the longest of the texts needs; 2 if there are none."""
        return 2 + max((len(self._pieces(text)) for text in texts), default=0)

    def report(self) -> str:
        """One line: sizes, and how many texts were cut so far (a repeated text counts again)."""
        return (
            f"vocabulary of {self.vocab_size} of {STOCK_VOCABULARY} ids, "
            f"context length {self.context_length}, texts cut: {self.over_long}"
        )

    def _pieces(self, text: str) -> list[int]:
        pieces = self._pieces_of.get(text)
        if pieces is None:
            try:
                pieces = [self._table[piece] for piece in self._encode_stock(text)]
            except KeyError:
                raise ValueError(
                    f"texts must use words of the vocabulary, got {self._unknown(text)!r} "
                    f"in {text!r}"
                ) from None
            self._pieces_of[text] = pieces
        return pieces

    def _unknown(self, text: str) -> str:
        for word in text.split():
            if any(piece not in self._table for piece in self._encode_stock(word)):
                return word
        return text
