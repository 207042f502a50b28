"""The interface of the rewriters: from a caption and its anchors to a hard caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipform_training.concreteplant.anchors import Candidate
from slipform_training.concreteplant.rewrite import HardCaption
from slipform_training.data import Stream


@dataclass(frozen=True)
class Job:
    """A caption to rewrite.

    Attributes:
        caption: the text.
        anchors: the words to replace, in the order in which to try them.
        candidates: all rated words of the caption.
        seed, sample: fix the rewriter's choices.
    """

    caption: str
    anchors: Sequence[Candidate]
    candidates: Sequence[Candidate]
    seed: int
    sample: str

    def stream(self, rewriter: str) -> Stream:
        """The draws of a rewriter for this job: by seed, rewriter and sample alone."""
        return Stream(self.seed, "rewrite", rewriter, self.sample)


@dataclass(frozen=True)
class Refusal:
    """Why a caption got no hard caption."""

    reason: str


Outcome = HardCaption | Refusal


class Rewriter(Protocol):
    """Makes hard captions."""

    name: str

    def rewrite(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome for each job, in order."""


class Thesaurus(Protocol):
    """Knows which words may be true of one thing."""

    def related(self, first: str, second: str, role: str) -> bool:
        """Whether two lemmas are synonyms, or one is a hypernym of the other."""
