"""COCO's categories by the nouns of captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Words of captions for a category, apart from its own name; plurals follow by rule.
SYNONYMS = {
    "person": "man woman boy girl child kid baby toddler lady guy gentleman male female player "
    "pitcher batter catcher umpire skier snowboarder skateboarder surfer rider cyclist biker chef "
    "officer policeman crowd skater couple pedestrian passenger driver waiter student soldier",
    "bicycle": "bike",
    "motorcycle": "motorbike moped scooter",
    "airplane": "plane jet aircraft jetliner airliner jumbo",
    "bus": "double-decker",
    "train": "locomotive",
    "boat": "ship sailboat canoe kayak",
    "fire hydrant": "hydrant",
    "bird": "duck goose seagull parrot pigeon owl swan eagle chicken parakeet canary pelican",
    "cat": "kitten kitty",
    "dog": "puppy pup",
    "horse": "pony",
    "sheep": "lamb",
    "cow": "cattle bull calf ox",
    "handbag": "purse",
    "tie": "necktie",
    "suitcase": "luggage",
    "frisbee": "disc",
    "skis": "ski",
    "sports ball": "ball baseball football basketball",
    "baseball bat": "bat",
    "baseball glove": "mitt",
    "tennis racket": "racket racquet",
    "wine glass": "wineglass",
    "cup": "mug",
    "donut": "doughnut",
    "couch": "sofa loveseat",
    "potted plant": "plant",
    "dining table": "table desk",
    "tv": "television monitor screen",
    "laptop": "computer",
    "cell phone": "phone cellphone smartphone",
    "oven": "stove",
    "refrigerator": "fridge",
    "teddy bear": "teddy",
    "hair drier": "hairdryer",
}

_PLURALS = {
    "men": "man",
    "women": "woman",
    "children": "child",
    "people": "person",
    "geese": "goose",
    "calves": "calf",
    "oxen": "ox",
    "knives": "knife",
    "mice": "mouse",
    "policemen": "policeman",
    "gentlemen": "gentleman",
    "ladies": "lady",
    "babies": "baby",
}
_ALWAYS_PLURAL = ("skis", "scissors", "glasses", "cattle", "crowd", "couple", "luggage")


class Categories:
    """The categories of an annotation file.

    Args:
        names: category names by id, as in the file.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._of: dict[str, int] = {}
        for number, name in names.items():
            self._of[name.lower()] = number
        for number, name in names.items():
            for word in SYNONYMS.get(name.lower(), "").split():
                self._of.setdefault(word, number)

    def find(self, noun: str) -> tuple[int, bool] | None:
        """The category that a noun names, and whether it speaks of several; None if none.

        The end of a compound counts, the longest first: "city bus" is a bus, "street sign" no stop
        sign, and "table cloth" no table.

        Args:
            noun: as in a caption, such as "street signs".
        """
        words = noun.lower().split()
        for start in range(len(words)):
            name = " ".join(words[start:])
            for form in _singulars(name):
                if form in self._of:
                    return self._of[form], form != name or name in _ALWAYS_PLURAL
        return None


def _singulars(name: str) -> Iterable[str]:
    """The name as it is, then what it may be the plural of."""
    before, space, last = name.rpartition(" ")
    forms = [last]
    if last in _PLURALS:
        forms.append(_PLURALS[last])
    if last.endswith("ies"):
        forms.append(last[:-3] + "y")
    if last.endswith("es"):
        forms.append(last[:-2])
    if last.endswith("s") and not last.endswith("ss"):
        forms.append(last[:-1])
    return [before + space + form for form in forms]
