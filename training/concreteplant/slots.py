"""The grammatical place that a rated word has in its caption.

A word that was seen in the same place elsewhere in the corpus can stand there: after the same
article, before the same preposition, as the object of the same verb. No parser is needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Determiners by what they ask of their noun. "a" wants a countable one; nothing ("bare") and
# "some", with a singular noun, an uncountable one.
_DETERMINERS = {
    **dict.fromkeys(("a", "an", "another", "each", "every", "one"), "a"),
    **dict.fromkeys(("the", "this", "that", "his", "her", "its", "their", "my", "our"), "the"),
    **dict.fromkeys(("these", "those", "both", "many", "several", "few", "various"), "many"),
    **dict.fromkeys(("some", "any", "all", "no", "more"), "some"),
}
_IN_PHRASE = frozenset({"ADJ", "NOUN", "PROPN", "NUM", "ADV"})
_NOUNS = frozenset({"NOUN", "PROPN"})


class Token(NamedTuple):
    """What of a spaCy token the slots need; made once, since spaCy's attributes are slow."""

    text: str
    lemma: str
    pos: str
    tag: str


class Slot(NamedTuple):
    """Where a word stands.

    Attributes:
        frame: what grammar asks: of a noun the kind of its determiner ("a", "the", "many",
            "some", "number", "bare", "list", "start") and its place in a compound; of a verb what
            follows; of an adjective whether a noun follows.
        left: the word that governs it: of a noun the verb or preposition before its phrase, of a
            verb the noun before it.
        right: what follows: a preposition, a verb's or a noun's lemma; "" for anything else.
    """

    frame: str
    left: str
    right: str


NO_SLOT = Slot("", "", "")


def tokens_of(doc: Any) -> list[Token]:
    """The tokens of a spaCy document."""
    # One call for all numbers: a token's attributes one by one take several times as long.
    strings = doc.vocab.strings
    return [
        Token(strings[lower], strings[lemma].lower(), strings[pos], strings[tag])
        for lower, lemma, pos, tag in doc.to_array(("LOWER", "LEMMA", "POS", "TAG")).tolist()
    ]


def slot_of(tokens: list[Token], start: int, end: int, role: str, pos: str) -> Slot:
    """The slot of tokens start to end (exclusive), a word or two rated as one.

    Args:
        tokens: the caption's.
        start, end: the word's place.
        role: "O", "A" or "R".
        pos: its coarse tag.
    """
    if role == "O":
        return _noun_slot(tokens, start, end)
    if pos == "VERB":
        return _verb_slot(tokens, start, end)
    following = tokens[end] if end < len(tokens) else None
    attributive = following is not None and following.pos in ("NOUN", "PROPN", "ADJ")
    right = following.lemma if following is not None and following.pos in _NOUNS else ""
    return Slot("attributive" if attributive else "predicative", "", right)


def _noun_slot(tokens: list[Token], start: int, end: int) -> Slot:
    following = tokens[end] if end < len(tokens) else None
    if following is not None and following.pos in _NOUNS:
        place, right = "/modifier", "n:" + following.lemma
    elif following is not None and _is_half_of_adjective(tokens, end):
        place, right = "/modifier", "v:" + following.lemma
    else:
        place, right = "", _right(following)
    if start and tokens[start - 1].pos in _NOUNS:
        # What a compound's modifier is called decides what its head can be.
        return Slot("compound" + place, "n:" + tokens[start - 1].lemma, right)
    determiner, left = _determiner(tokens, start)
    return Slot(determiner + place, left, right)


def _determiner(tokens: list[Token], start: int) -> tuple[str, str]:
    at = start - 1
    number = False
    while at >= 0:
        token = tokens[at]
        if token.text in _DETERMINERS:
            return _DETERMINERS[token.text], _governor(tokens, at - 1)
        if token.tag in ("PRP$", "POS"):
            return "the", ""
        if token.pos == "NUM":
            number = True
        elif token.pos not in _IN_PHRASE and not _is_participle(tokens, at):
            break
        at -= 1
    left = _governor(tokens, at)
    if number:
        return "number", left
    # A caption that begins without an article may be a headline: "Man on a horse". In a list, "a
    # cat and dog", the first article may serve for all.
    if at < 0:
        return "start", left
    return ("list" if left in (",", "and", "or", "&") else "bare"), left


def _is_participle(tokens: list[Token], at: int) -> bool:
    """Of "a parked car", not of "a man riding horses"."""
    if tokens[at].tag not in ("VBN", "VBG") or at == 0:
        return False
    return tokens[at - 1].text in _DETERMINERS or tokens[at - 1].pos == "ADJ"


def _is_half_of_adjective(tokens: list[Token], at: int) -> bool:
    """The "covered" of "a grass covered field", not that of "a field covered in grass"."""
    after = tokens[at + 1] if at + 1 < len(tokens) else None
    return tokens[at].tag == "VBN" and after is not None and after.pos in ("NOUN", "ADJ")


def _governor(tokens: list[Token], at: int) -> str:
    if at < 0:
        return "^"
    token = tokens[at]
    return "v:" + token.lemma if token.pos == "VERB" else token.text


def _right(token: Token | None) -> str:
    if token is None:
        return ""
    if token.pos == "VERB":
        return "v:" + token.lemma
    return token.text if token.pos == "ADP" else ""


def _verb_slot(tokens: list[Token], start: int, end: int) -> Slot:
    left = next((t.lemma for t in reversed(tokens[:start]) if t.pos in _NOUNS), "")
    right = next((t.lemma for t in tokens[end:] if t.pos in _NOUNS), "")
    if end >= len(tokens) or tokens[end].pos in ("PUNCT", "SPACE", "CCONJ"):
        frame = "end"
    elif tokens[end].pos in ("ADP", "ADV", "PART", "SCONJ", "VERB"):
        frame = tokens[end].text
    else:
        frame = "object"
    before = tokens[start - 1] if start else None
    if before is not None and (before.text in _DETERMINERS or before.pos == "ADJ"):
        frame += "/attributive"
    return Slot(frame, left, right)
