"""The interface of the rewriters: from a caption and its anchors to a hard caption."""

from __future__ import annotations

import re
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
        seed, sample, number: fix the rewriter's choices; the number counts a sample's hard
            captions.
    """

    caption: str
    anchors: Sequence[Candidate]
    candidates: Sequence[Candidate]
    seed: int
    sample: str
    number: int = 0

    def stream(self, rewriter: str) -> Stream:
        """The draws of a rewriter for this job: by seed, rewriter, number and sample alone."""
        return Stream(self.seed, "rewrite", rewriter, self.number, self.sample)


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


def present_words(job: Job) -> set[str]:
    """The words of a job's caption and their lemmas, lower case: a rewriter takes none of them."""
    present = set(re.findall(r"[\w'-]+", job.caption.lower()))
    for item in job.candidates:
        present |= {item.lemma, item.text.lower(), *item.lemma.split()}
    return present


class Thesaurus(Protocol):
    """Knows which words may be true of one thing."""

    def related(self, first: str, second: str, role: str) -> bool:
        """Whether two lemmas are synonyms, or one is a hypernym of the other."""
