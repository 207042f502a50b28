"""Short lists of words that a parse alone does not tell apart."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


COLOURS = _words(
    "black white red green blue yellow brown orange pink purple gray grey gold golden silver beige "
    "tan maroon turquoise teal violet cream blond blonde navy"
)
SHADES = _words("dark light bright deep pale navy hot neon lime sky baby royal")
MATERIALS = _words(
    "wood wooden metal brick glass plastic stone concrete leather marble steel paper cloth wicker "
    "granite tile iron aluminum aluminium ceramic rubber cardboard bamboo cement chrome"
)

# Adjectives that say how many, which one, or nothing that can be seen.
NO_ATTRIBUTES = _words(
    "many much several few more most less other another own same such various multiple numerous "
    "certain next last first second third main only able ready available different respective "
    "additional extra further possible due one two three four five six seven eight "
    "nine ten ski skate right left"
)

# "a group of horses" is about horses, and so is "a picture of horses", but old may be the picture.
PICTURES = _words("view picture photo photograph image shot closeup")
QUANTITIES = PICTURES | _words(
    "group groups couple couples bunch bunches number numbers lot lots variety varieties kind "
    "kinds type types sort sorts pair pairs assortment set row rows piece pieces array range "
    "series collection dozen dozens hundreds thousands all some one two three four five six many "
    "several few most part close up"
)

# The small pipeline takes them for verbs where captions have them as nouns.
ALWAYS_NOUNS = _words(
    "oven stove sink sign signs microwave laptop bear bears sandwich refrigerator hydrant hydrants"
)

# And these for nouns: "a giraffe standing", "a player playing tennis".
ALWAYS_VERBS = _words(
    "standing sitting playing riding holding wearing walking looking laying lying flying eating "
    "running jumping carrying hanging swinging grazing driving leaning"
)

# Names that are taken as they are: their first word is no attribute, nor a thing of its own.
FIXED = frozenset(
    tuple(name.split())
    for name in (
        "hot dog",
        "hot dogs",
        "double decker",
        "fast food",
        "living room",
        "stop sign",
        "stop signs",
        "teddy bear",
        "teddy bears",
    )
)

# Relations of several words, longest first where one begins another.
PREPOSITIONS = tuple(
    tuple(words.split())
    for words in (
        "on the other side of",
        "on either side of",
        "on each side of",
        "on both sides of",
        "on the side of",
        "on the edge of",
        "on the back of",
        "on the front of",
        "on the end of",
        "at the end of",
        "at the edge of",
        "at the side of",
        "at the top of",
        "at the bottom of",
        "to the left of",
        "to the right of",
        "to the side of",
        "in the middle of",
        "in the center of",
        "in the back of",
        "in the front of",
        "in the corner of",
        "by the side of",
        "along the side of",
        "down the side of",
        "up the side of",
        "on the top of",
        "from the side of",
        "off the side of",
        "in front of",
        "full of",
        "in back of",
        "in between",
        "on top of",
        "on back of",
        "on board",
        "next to",
        "close to",
        "up against",
        "adjacent to",
        "near to",
        "up to",
        "out of",
        "up on",
        "up in",
        "out on",
        "out in",
        "out to",
        "down in",
        "down on",
        "off of",
        "inside of",
        "outside of",
        "away from",
        "across from",
        "along with",
        "together with",
        "instead of",
    )
)

# What follows a preposition without being a place or a thing: "at night", "in preparation"; and
# what is one only with a word of its own before it: "in front", but "in a gray top".
NO_TARGETS = _words(
    "night day daytime nighttime time times preparation order addition case fact general way close"
)
POSITIONS = _words("front top background foreground distance middle side sides right left")

# Verbs that say nothing of the picture by themselves.
NO_RELATIONS = _words("be do get try seem appear begin start let see")
