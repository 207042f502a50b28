"""Which tokens of a caption are the words of its attributes and relations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slipform_training.data import ReducedTokenizer, Stream
from slipform_training.macco.rows import Concepts

# The release's lists hold articles where a parser slipped; masking them says nothing.
_ARTICLES = frozenset(("a", "an", "the"))


class Piece(NamedTuple):
    """A word of a cleaned text, as the tokenizer splits it before byte-pair encoding.

    Attributes:
        text: lower case.
        tokens: their ids.
        start, end: its place in the cleaned text.
        begins, ends: whether a word of the text begins, or ends, with it: "10" is two pieces.
    """

    text: str
    tokens: tuple[int, ...]
    start: int
    end: int
    begins: bool
    ends: bool


@dataclass
class WordMask:
    """mask: bool [L]. missing: words that the caption does not hold. cut: words beyond its end."""

    mask: Tensor
    missing: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)


class WordFinder:
    """Finds words in captions, token by token.

    Args:
        tokenizer: open_clip's SimpleTokenizer, which its CLIP models have, or a ReducedTokenizer.

    Raises:
        ValueError: another tokenizer, or one that drops tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        from open_clip.tokenizer import SimpleTokenizer

        # A reduced tokenizer renumbers the pieces of the stock one, and keeps their places.
        stock = tokenizer.stock if isinstance(tokenizer, ReducedTokenizer) else tokenizer
        if not isinstance(stock, SimpleTokenizer):
            raise ValueError(
                f"tokenizer: got {type(tokenizer).__name__}, expected open_clip's SimpleTokenizer, "
                "in which words can be found"
            )
        if stock.reduction_fn is not None:
            raise ValueError("tokenizer: got one that drops tokens, expected one that keeps them")
        self._stock = stock
        self.context_length = int(tokenizer.context_length)

    def pieces(self, text: str) -> list[Piece]:
        """The text's pieces, in order; their tokens are those of the tokenizer."""
        stock = self._stock
        cleaned = stock.clean_fn(text)
        found = []
        for match in stock.pat.finditer(cleaned):
            coded = "".join(stock.byte_encoder[byte] for byte in match.group().encode())
            tokens = tuple(stock.encoder[part] for part in stock.bpe(coded).split(" "))
            start, end = match.span()
            begins = start == 0 or not cleaned[start - 1].isalnum()
            ends = end == len(cleaned) or not cleaned[end].isalnum()
            found.append(Piece(match.group().lower(), tokens, start, end, begins, ends))
        return found

    def mask(self, caption: str, concepts: Concepts) -> WordMask:
        """The tokens of the attributes' and relations' words.

        A word is meant where it stands in its phrase, if the caption has that: its words in their
        order, in the shortest stretch. Otherwise it is its first occurrence that no other word has
        taken. A word that is listed more often than it occurs takes what is there.

        Args:
            caption: as it is tokenized.
            concepts: of the caption.
        """
        pieces = self.pieces(caption)
        # Start of text is the first token, and the last place is the end of text.
        starts = [1, *accumulate((len(one.tokens) for one in pieces), initial=1)][1:]
        result = WordMask(torch.zeros(self.context_length, dtype=torch.bool))
        taken: set[int] = set()
        for word, run in self._runs(pieces, concepts, taken):
            if run is None:
                result.missing.append(word)
                continue
            first, last = starts[run.start], starts[run.stop]
            if last > self.context_length - 1:
                result.cut.append(word)
            else:
                result.mask[first:last] = True
        return result

    def random_mask(self, caption: str, count: int, draw: Stream) -> Tensor:
        """As many tokens of the caption, at random places: bool [L]."""
        length = sum(len(one.tokens) for one in self.pieces(caption))
        places = draw.shuffled(range(1, min(length, self.context_length - 2) + 1))
        mask = torch.zeros(self.context_length, dtype=torch.bool)
        mask[places[:count]] = True
        return mask

    def _runs(
        self, pieces: Sequence[Piece], concepts: Concepts, taken: set[int]
    ) -> Iterator[tuple[str, range | None]]:
        """Each word with its run of pieces, those with a phrase first."""
        words = [
            (word, kind)
            for kind, listed in (
                ("attribute", concepts.attributes),
                ("relation", concepts.relations),
            )
            for word in listed
            if word.strip().lower() not in _ARTICLES
        ]
        stretches = [
            (one.kind, self._texts(one.text), _shortest(pieces, self._texts(one.text)))
            for one in concepts.phrases
        ]
        rest = []
        for word, kind in words:
            wanted = self._texts(word)
            within = (
                stretch
                for of_kind, texts, stretch in stretches
                if of_kind == kind and stretch is not None and _holds(texts, wanted)
            )
            run = _first_free(pieces, wanted, within, taken)
            if run is None:
                rest.append((word, wanted))
            else:
                taken.update(run)
                yield word, run
        for word, wanted in rest:
            whole = [range(len(pieces))]
            run = _first_free(pieces, wanted, whole, taken) or _first_free(
                pieces, wanted, whole, set()
            )
            taken.update(run or ())
            yield word, run

    def _texts(self, text: str) -> list[str]:
        return [one.text for one in self.pieces(text)]


def _first_free(
    pieces: Sequence[Piece], wanted: Sequence[str], within: Iterable[range], taken: set[int]
) -> range | None:
    """The first run of the wanted pieces, from a word's beginning to a word's end, not taken."""
    for stretch in within if wanted else ():
        for start in range(stretch.start, stretch.stop - len(wanted) + 1):
            run = range(start, start + len(wanted))
            if (
                [pieces[i].text for i in run] == list(wanted)
                and pieces[run[0]].begins
                and pieces[run[-1]].ends
                and taken.isdisjoint(run)
            ):
                return run
    return None


def _shortest(pieces: Sequence[Piece], wanted: Sequence[str]) -> range | None:
    """The shortest stretch that has the wanted pieces in their order, the first of equals."""
    best: range | None = None
    for start in range(len(pieces)):
        if not wanted or pieces[start].text != wanted[0]:
            continue
        at, left = start, 0
        while at < len(pieces) and left < len(wanted):
            left += pieces[at].text == wanted[left]
            at += 1
        if left == len(wanted) and (best is None or at - start < len(best)):
            best = range(start, at)
    return best


def _holds(texts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the wanted pieces stand in a row in the texts."""
    size = len(wanted)
    return any(list(texts[i : i + size]) == list(wanted) for i in range(len(texts) - size + 1))
