"""Mines hard captions for a corpus: ConcretePlant's first two stages (arXiv 2604.13313)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slipform_training.concreteplant.anchors import (
    Candidate,
    draw_anchors,
    find_candidates,
    load_pipeline,
    top_candidates,
)
from slipform_training.concreteplant.lexicon import Lexicon, load_lexicon
from slipform_training.concreteplant.rewrite import (
    HardCaption,
    WordInventory,
    replace_word,
    swap_words,
)
from slipform_training.data import Stream

REWRITERS = ("replace", "swap", "either")
TARGETS = ("high", "low")

NO_CANDIDATE = "no rated word"
NO_REWRITE = "no word to replace it by or swap it with"


@dataclass(frozen=True, kw_only=True)
class MinerOptions:
    """Options of the miner.

    Attributes:
        k: the anchor is one of the k most concrete words (3 in the paper). Short captions whose
            relations and colours are to be reached need more: prepositions are less concrete than
            nouns.
        min_concreteness: words below it are no candidates, 1 to 5. At 1, the paper's, a preposition
            such as "of" is one.
        tolerance: largest difference in concreteness between a word and what replaces it or is
            swapped with it.
        rewriters: one for each hard caption that a caption shall get. "replace": another word of
            the corpus in the anchor's place. "swap": two objects, with or without their attributes,
            or two attributes of the caption swapped. "either": one of these at random, the other
            if it fails.
        targets: "high": the k most concrete words, the paper's; "low": the k least concrete of
            those that min_concreteness leaves, for the comparison of the two.
        seed: with a sample's id it fixes all choices for that sample.

    Raises:
        ValueError: an option out of range.
    """

    k: int = 3
    min_concreteness: float = 1.0
    tolerance: float = 0.5
    rewriters: tuple[str, ...] = ("replace",)
    targets: str = "high"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be 1 or more, got {self.k}")
        if not 1.0 <= self.min_concreteness <= 5.0:
            raise ValueError(f"min_concreteness must be from 1 to 5, got {self.min_concreteness}")
        if not self.tolerance >= 0.0:
            raise ValueError(f"tolerance must be 0 or more, got {self.tolerance}")
        if not self.rewriters or any(name not in REWRITERS for name in self.rewriters):
            raise ValueError(f"rewriters must be one or more of {REWRITERS}, got {self.rewriters}")
        if self.targets not in TARGETS:
            raise ValueError(f"targets must be one of {TARGETS}, got {self.targets!r}")


@dataclass(frozen=True)
class Mining:
    """What was mined from N captions.

    Attributes:
        hard: N tuples of 0 to K hard captions, K the number of rewriters; no two of a tuple are
            equal.
        reasons: N texts, why a caption got no hard caption at all; None where it got one.
        wanted: K.
    """

    hard: list[tuple[HardCaption, ...]]
    reasons: list[str | None]
    wanted: int

    @property
    def counts(self) -> dict[str, int]:
        """How many captions, captions with and without a hard caption by reason, and hard captions
        by edit and by rewriter."""
        every = [item for items in self.hard for item in items]
        edits = Counter(item.edit for item in every)
        return {
            "captions": len(self.hard),
            "captions mined": sum(bool(items) for items in self.hard),
            **{
                f"captions left out: {reason}": count
                for reason, count in sorted(Counter(filter(None, self.reasons)).items())
            },
            "hard captions": len(every),
            **{f"edit {edit}": edits[edit] for edit in "OAR"},
            **{
                f"rewriter {name}": count
                for name, count in sorted(Counter(item.rewriter for item in every).items())
            },
        }

    def report(self) -> str:
        """The counts, one a line, and the mean concreteness by edit."""
        lines = [f"{name}: {count}" for name, count in self.counts.items()]
        for edit in "OAR":
            ratings = [x.concreteness for items in self.hard for x in items if x.edit == edit]
            if ratings:
                lines.append(f"mean concreteness {edit}: {sum(ratings) / len(ratings):.2f}")
        return "\n".join(lines)

    def arrays(self) -> tuple[list[str], torch.Tensor, torch.Tensor]:
        """Hard captions as the losses take them.

        Returns:
            texts: N * K, sample by sample; "" where there is none.
            concreteness: float32 ``[N, K]``, 1 to 5; 1 where there is none.
            mask: bool ``[N, K]``, true where there is one.
        """
        texts = []
        concreteness = torch.ones(len(self.hard), self.wanted)
        mask = torch.zeros(len(self.hard), self.wanted, dtype=torch.bool)
        for row, items in enumerate(self.hard):
            texts += [item.hard_caption for item in items] + [""] * (self.wanted - len(items))
            for column, item in enumerate(items):
                concreteness[row, column] = item.concreteness
                mask[row, column] = True
        return texts, concreteness, mask


class ConcretePlant:
    """Mines hard captions.

    Args:
        options: the options.
        lexicon: concreteness ratings; None loads Brysbaert's.
        nlp: a spaCy pipeline; None loads the small English one.

    Raises:
        RuntimeError: a package is missing; the message names the extra.
    """

    def __init__(
        self,
        options: MinerOptions | None = None,
        *,
        lexicon: Lexicon | None = None,
        nlp: Any = None,
    ) -> None:
        self.options = options or MinerOptions()
        self._lexicon = lexicon or load_lexicon()
        self._nlp = nlp or load_pipeline()
        self._candidates: dict[str, list[Candidate]] = {}

    def candidates(self, captions: Sequence[str]) -> list[list[Candidate]]:
        """The rated words of each caption, in the order of the text; cached by text."""
        new = [text for text in dict.fromkeys(captions) if text not in self._candidates]
        found = find_candidates(new, lexicon=self._lexicon, nlp=self._nlp)
        self._candidates.update(zip(new, found, strict=True))
        return [self._candidates[text] for text in captions]

    def mine(self, captions: Sequence[str], ids: Sequence[int | str] | None = None) -> Mining:
        """Mines hard captions.

        Replacements are words of these captions, so a caption's result depends on the corpus that
        it is mined with; besides on the options and its id alone.

        Args:
            captions: N texts, the corpus.
            ids: N sample ids; None numbers them from 0.

        Raises:
            TypeError: captions is one text.
            ValueError: ids are not as many as captions.
        """
        if isinstance(captions, str):
            raise TypeError("captions must be a sequence of texts, got one text")
        if ids is None:
            ids = range(len(captions))
        if len(ids) != len(captions):
            raise ValueError(f"ids must be {len(captions)}, one a caption, got {len(ids)}")
        candidates = self.candidates(captions)
        lowest = self.options.min_concreteness
        inventory = WordInventory(
            [item for item in self._candidates[text] if item.concreteness >= lowest]
            for text in dict.fromkeys(captions)
        )
        hard: list[tuple[HardCaption, ...]] = []
        reasons: list[str | None] = []
        for caption, sample, own in zip(captions, ids, candidates, strict=True):
            items = self._mine_one(caption, sample, own, inventory)
            hard.append(items)
            has_any = any(item.concreteness >= lowest for item in own)
            reasons.append(None if items else NO_REWRITE if has_any else NO_CANDIDATE)
        return Mining(hard=hard, reasons=reasons, wanted=len(self.options.rewriters))

    def _mine_one(
        self,
        caption: str,
        sample: int | str,
        candidates: Sequence[Candidate],
        inventory: WordInventory,
    ) -> tuple[HardCaption, ...]:
        options = self.options
        lowest = options.min_concreteness
        top = top_candidates(
            candidates, k=options.k, min_concreteness=lowest, targets=options.targets
        )
        anchors = draw_anchors(top, seed=options.seed, sample=sample)
        found: dict[str, HardCaption] = {}
        for number, name in enumerate(options.rewriters):
            stream = Stream(options.seed, "rewrite", number, sample)
            order = stream.shuffled(("replace", "swap")) if name == "either" else [name]
            for rewriter in order:
                item: HardCaption | None = None
                if rewriter == "swap":
                    item = swap_words(
                        caption,
                        candidates=candidates,
                        tolerance=options.tolerance,
                        stream=stream,
                        min_concreteness=lowest,
                    )
                while rewriter == "replace" and anchors and item is None:
                    # Each anchor serves once, so that two replacements change different words.
                    item = replace_word(
                        caption,
                        anchors.pop(0),
                        candidates=candidates,
                        inventory=inventory,
                        tolerance=options.tolerance,
                        stream=stream,
                    )
                if item is not None and item.hard_caption not in found:
                    found[item.hard_caption] = item
                    break
        return tuple(found.values())
