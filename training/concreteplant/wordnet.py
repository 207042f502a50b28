"""WordNet 3.0, through NLTK's reader: what is true of one thing, and a rewriter of its own.

Only the database is needed, in any folder, such as that of Debian's package wordnet-base.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from slipform_training.concreteplant.anchors import Candidate
from slipform_training.concreteplant.inflect import inflect
from slipform_training.concreteplant.meanings import VAGUE, may_both_hold
from slipform_training.concreteplant.rewrite import replaced_by
from slipform_training.concreteplant.rewriters import Job, Outcome, Refusal, present_words

# The lexicographer files by number (lexnames(5WN)). Debian's package leaves this list out, and
# NLTK's reader does not start without it.
_LEXNAMES = """
adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body
noun.cognition noun.communication noun.event noun.feeling noun.food noun.group noun.location
noun.motive noun.object noun.person noun.phenomenon noun.plant noun.possession noun.process
noun.quantity noun.relation noun.shape noun.state noun.substance noun.time verb.body verb.change
verb.cognition verb.communication verb.competition verb.consumption verb.contact verb.creation
verb.emotion verb.motion verb.perception verb.possession verb.social verb.stative verb.weather
adj.ppl
"""
_CLASS = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}

_POS = {"O": "n", "A": "a", "R": "v"}

# A word's senses by frequency: the later ones are hardly ever meant in a caption.
_SENSES = 3


def lexnames() -> str:
    """The file "lexnames" of WordNet 3.0: number, name and class of each lexicographer file."""
    return "".join(
        f"{number:02d}\t{name}\t{_CLASS[name.partition('.')[0]]}\n"
        for number, name in enumerate(_LEXNAMES.split())
    )


Rate = Callable[[str], float | None]


class WordNet:
    """The relations between words that the rewriters ask for.

    Args:
        folder: of the database: data.noun, index.noun and so on.

    Raises:
        RuntimeError: NLTK is missing.
        ValueError: the folder holds no such database; the message says what is missing.
    """

    def __init__(self, folder: Path) -> None:
        missing = [name for name in _FILES if not (Path(folder) / name).is_file()]
        if missing:
            raise ValueError(f"wordnet: {folder} has no {', '.join(missing)}")
        self._reader = _reader(Path(folder).resolve())
        self._cached = lru_cache(1 << 16)(self._related)

    def related(self, first: str, second: str, role: str) -> bool:
        """Whether two lemmas are synonyms, or one is above the other, in a frequent sense."""
        return self._cached(first, second, role)

    def _related(self, first: str, second: str, role: str) -> bool:
        one, other = self._senses(first, role), self._senses(second, role)
        if set(one) & set(other):
            return True
        if role == "A":
            return any(set(sense.similar_tos()) & set(other) for sense in one)
        return not _above(one).isdisjoint(other) or not _above(other).isdisjoint(one)

    def rivals(self, lemma: str, role: str) -> list[str]:
        """Words for something else of the same kind: co-hyponyms, and antonyms.

        Returns:
            Lemmas, sorted; of nouns and verbs the co-hyponyms of the most frequent sense, of
            adjectives the antonyms.
        """
        senses = self._senses(lemma, role)[:1]
        found: set[str] = set()
        for sense in senses:
            for entry in sense.lemmas():
                found |= {other.name() for other in entry.antonyms()}
            for above in sense.hypernyms():
                for below in above.hyponyms():
                    if below != sense:
                        # The first of a synset's words is its most frequent.
                        found.add(below.lemmas()[0].name())
        words = (name.replace("_", " ") for name in found)
        return sorted(word for word in words if not self.related(lemma, word, role))

    def frequency(self, lemma: str, role: str) -> int:
        """How often the lemma's senses were counted in WordNet's texts."""
        name = lemma.replace(" ", "_")
        return sum(
            entry.count()
            for sense in self._senses(lemma, role)
            for entry in sense.lemmas()
            if entry.name().lower() == name
        )

    def _senses(self, lemma: str, role: str) -> list[Any]:
        return self._reader.synsets(lemma.replace(" ", "_"), _POS[role])[:_SENSES]


class WordNetRewriter:
    """Replaces an anchor by a co-hyponym or an antonym, inflected as the anchor is.

    Args:
        wordnet: the database.
        rate: the concreteness of a lemma, or None; only rated words are taken, which keeps
            WordNet's rarities out.
        tolerance: largest difference in concreteness.
    """

    name = "wordnet"

    def __init__(self, wordnet: WordNet, rate: Rate, *, tolerance: float = 0.5) -> None:
        self._wordnet = wordnet
        self._rate = rate
        self._tolerance = tolerance

    def rewrite(self, jobs: Sequence[Job]) -> list[Outcome]:
        """One outcome a job; a job's anchors are tried in turn."""
        return [self._rewrite(job) for job in jobs]

    def _rewrite(self, job: Job) -> Outcome:
        stream = job.stream(self.name)
        present = present_words(job)
        for anchor in job.anchors:
            if anchor.tag in ("IN", "CD") or anchor.lemma in VAGUE:
                continue
            words = [
                word
                for lemma in self._wordnet.rivals(anchor.lemma, anchor.role)
                if (word := self._usable(lemma, anchor, present)) is not None
            ]
            if words:
                word = stream.choice(words)
                return replaced_by(job.caption, anchor, word, rewriter=self.name)
        return Refusal("WordNet has no co-hyponym or antonym")

    def _usable(self, lemma: str, anchor: Candidate, present: set[str]) -> str | None:
        if (
            self._rate(lemma) is None
            or not lemma.replace(" ", "").isalpha()
            or lemma != lemma.lower()
        ):
            return None
        if may_both_hold(anchor.lemma, lemma) or not self._wordnet.frequency(lemma, anchor.role):
            return None
        word = inflect(lemma, anchor.tag)
        if word is None or lemma in present or not present.isdisjoint(word.split()):
            return None
        return word


_FILES = tuple(
    f"{kind}.{pos}" for kind in ("data", "index") for pos in ("noun", "verb", "adj", "adv")
)


def _above(senses: Sequence[Any]) -> set[Any]:
    return {above for sense in senses for above in sense.closure(lambda x: x.hypernyms())}


@lru_cache(2)
def _reader(folder: Path) -> Any:
    try:
        import nltk.data
        from nltk.corpus.reader.wordnet import WordNetCorpusReader
    except ImportError as error:
        raise RuntimeError(
            "nltk is missing, which reads WordNet; install slipform-kernels[train]"
        ) from error

    # NLTK reads only from folders that it was told of.
    if str(folder) not in nltk.data.path:
        nltk.data.path.append(str(folder))

    class Reader(WordNetCorpusReader):
        def open(self, file: str) -> Any:
            if file == "lexnames" and not (folder / file).is_file():
                return io.StringIO(lexnames())
            return super().open(file)

        def map_wn(self, version: str = "wordnet") -> None:
            """No other version's numbers are needed; to map them takes a second database."""

    with warnings.catch_warnings():
        # Only other languages are missed.
        warnings.filterwarnings("ignore", message="The multilingual functions")
        return Reader(str(folder), omw_reader=None)
