"""English word forms by rule, with the common exceptions."""

from __future__ import annotations

import re

_PLURALS = {
    "man": "men",
    "woman": "women",
    "child": "children",
    "person": "people",
    "foot": "feet",
    "tooth": "teeth",
    "goose": "geese",
    "mouse": "mice",
    "ox": "oxen",
    "leaf": "leaves",
    "knife": "knives",
    "loaf": "loaves",
    "wife": "wives",
    "wolf": "wolves",
    "shelf": "shelves",
    "calf": "calves",
    "half": "halves",
    "scarf": "scarves",
    "thief": "thieves",
    **dict.fromkeys(("sheep", "deer", "fish", "buffalo", "moose", "bison", "aircraft"), ""),
}
_IRREGULAR_VERBS = """
be was been; beat beat beaten; become became become; begin began begun; bend bent bent; bite bit
bitten; blow blew blown; break broke broken; bring brought brought; build built built; burn burned
burned; buy bought bought; catch caught caught; choose chose chosen; come came come; cut cut cut;
dig dug dug; do did done; draw drew drawn; drink drank drunk; drive drove driven; eat ate eaten;
fall fell fallen; feed fed fed; feel felt felt; fight fought fought; find found found; fly flew
flown; get got got; give gave given; go went gone; grow grew grown; hang hung hung; have had had;
hear heard heard; hide hid hidden; hit hit hit; hold held held; keep kept kept; kneel knelt knelt;
know knew known; lay laid laid; lead led led; leave left left; let let let; lie lay lain; light lit
lit; lose lost lost; make made made; meet met met; put put put; read read read; ride rode ridden;
rise rose risen; run ran run; see saw seen; sell sold sold; send sent sent; set set set; shake shook
shaken; shine shone shone; shoot shot shot; show showed shown; shut shut shut; sing sang sung; sink
sank sunk; sit sat sat; sleep slept slept; slide slid slid; speak spoke spoken; spin spun spun;
spread spread spread; stand stood stood; steal stole stolen; stick stuck stuck; swim swam swum;
swing swung swung; take took taken; teach taught taught; tear tore torn; tell told told; throw threw
thrown; wake woke woken; wear wore worn; weave wove woven; win won won; wind wound wound; write
wrote written
"""
_VERBS = {
    words[0]: (words[1], words[2])
    for words in (entry.split() for entry in _IRREGULAR_VERBS.replace("\n", " ").split(";"))
}


def inflect(lemma: str, tag: str) -> str | None:
    """The form of a lemma that a fine-grained tag asks for.

    Args:
        lemma: one word or more, lower case; of nouns the last is inflected, of verbs the first.
        tag: such as NN, NNS, VBG or JJ.

    Returns:
        The form; None for a tag that has none (comparatives, and what is no content word).
    """
    if tag in ("NN", "NNP", "JJ", "VB", "VBP"):
        return lemma
    if tag in ("NNS", "NNPS"):
        before, space, last = lemma.rpartition(" ")
        return before + space + _plural(last)
    first, space, rest = lemma.partition(" ")
    if tag == "VBZ":
        return {"be": "is", "have": "has"}.get(first, _add_s(first)) + space + rest
    if tag == "VBG":
        return _ending(first, "ing") + space + rest
    if tag in ("VBD", "VBN"):
        irregular = _VERBS.get(first)
        form = _ending(first, "ed") if irregular is None else irregular[tag == "VBN"]
        return form + space + rest
    return None


def _plural(noun: str) -> str:
    if noun in _PLURALS:
        return _PLURALS[noun] or noun
    for singular in ("man", "woman"):
        if noun.endswith(singular) and noun not in ("human", "german", "roman"):
            return noun.removesuffix("man") + "men"
    return _add_s(noun)


def _add_s(word: str) -> str:
    if re.search(r"(s|x|z|ch|sh)$", word) or re.search(r"[^aeiou]o$", word):
        return word + "es"
    return word[:-1] + "ies" if re.search(r"[^aeiou]y$", word) else word + "s"


def _ending(verb: str, ending: str) -> str:
    if ending == "ing":
        if verb.endswith("ie"):
            return verb[:-2] + "ying"
        if re.search(r"[^eoy]e$", verb) and verb != "be":
            return verb[:-1] + ending
    else:
        if verb.endswith("e"):
            return verb + "d"
        if re.search(r"[^aeiou]y$", verb):
            return verb[:-1] + "ied"
    # One vowel and one consonant at the end of one syllable: the consonant is doubled.
    if re.fullmatch(r"[^aeiou]*(qu)?[aeiou][^aeiouwxy]", verb):
        return verb + verb[-1] + ending
    return verb + ending
