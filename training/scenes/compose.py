"""Scenes: which objects, where, in which words; and their pictures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from slipform_training.data import Stream
from slipform_training.scenes.backgrounds import PLAIN, TEXTURED, make_backgrounds
from slipform_training.scenes.captions import Mention, caption_text
from slipform_training.scenes.config import PHRASINGS, RELATIONS, SIZES, SceneConfig
from slipform_training.scenes.heldout import HeldOut, hold_out
from slipform_training.scenes.layout import place
from slipform_training.scenes.sprites import SpriteBank

SPLITS = ("train", "heldout", "any")

# A draw of three or four nouns can end where no other noun may be shown with them; the next one
# nearly always succeeds.
MAX_TRIES = 1000


@dataclass(frozen=True)
class SceneObject:
    """One sprite of a scene.

    Attributes:
        noun, colour, size: names of the configuration's.
        box: x0, y0, x1, y1 in pixels, x1 and y1 exclusive; tight around what is visible.
    """

    noun: str
    colour: str
    size: str
    box: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Scene:
    """A scene; its caption is true of it.

    Attributes:
        seed, split, index: the key it was drawn with.
        objects: two or more with different nouns; the first is the relation's subject.
        relation: a name of RELATIONS, the first object's place as seen from all the others.
        background: number in the pool of backgrounds.
        phrasing: a name of PHRASINGS.
        colours_named, size_named: which objects' colours, and whether sizes, are in the caption.
    """

    seed: int
    split: str
    index: int
    objects: tuple[SceneObject, ...]
    relation: str
    background: int
    phrasing: str
    colours_named: tuple[bool, ...]
    sizes_named: bool

    @property
    def mentions(self) -> tuple[Mention, ...]:
        """The objects as the caption names them."""
        return tuple(
            Mention(
                noun=item.noun,
                colour=item.colour if named else None,
                size=item.size if self.sizes_named else None,
            )
            for item, named in zip(self.objects, self.colours_named, strict=True)
        )

    @property
    def caption(self) -> str:
        """The caption."""
        return caption_text(self.mentions, relation=self.relation, phrasing=self.phrasing)


@dataclass(frozen=True)
class SceneBatch:
    """B scenes with their pictures.

    Attributes:
        images: uint8 [B, resolution, resolution, 3], RGB.
        captions: B texts.
        scenes: B scenes.
    """

    images: NDArray[np.uint8]
    captions: list[str]
    scenes: list[Scene]

    def tensor(self) -> torch.Tensor:
        """The pictures as uint8 ``[B, 3, resolution, resolution]``."""
        return torch.from_numpy(self.images).permute(0, 3, 1, 2).contiguous()


class Scenes:
    """Draws scenes and renders them. Scene ``(seed, split, index)`` is always the same.

    Args:
        config: the options.

    Raises:
        ValueError: held-out shares that cannot be met, see hold_out.
    """

    def __init__(self, config: SceneConfig | None = None) -> None:
        self.config = config or SceneConfig()
        self.heldout: HeldOut = hold_out(self.config)
        self._nouns = tuple(noun.name for noun in self.config.nouns)
        self._colours = tuple(colour.name for colour in self.config.colours)
        self._bank = SpriteBank(self.config)
        self._backgrounds = make_backgrounds(self.config.resolution)
        held = {
            name: frozenset[str]().union(*self._pairs_of(name)) - {name} for name in self._nouns
        }
        self._partners = {
            "heldout": {name: _ordered(self._nouns, held[name]) for name in self._nouns},
            "train": {
                name: _ordered(self._nouns, frozenset(self._nouns) - held[name] - {name})
                for name in self._nouns
            },
        }
        self._train_colours = {
            name: tuple(c for c in self._colours if (c, name) not in self.heldout.colours)
            for name in self._nouns
        }

    def scene(self, index: int, *, seed: int = 0, split: str = "train") -> Scene:
        """Draws a scene.

        Args:
            index: 0 or more.
            seed: any integer.
            split: "train": no held-out pair or colour. "heldout": the first two nouns are a
                held-out pair; colours are free. "any": no restriction.

        Raises:
            ValueError: an unknown split, or "heldout" where nothing is held out.
            RuntimeError: so much is held out that three or four nouns cannot be shown together.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
        if split == "heldout" and not self.heldout.pairs:
            raise ValueError("split must not be 'heldout' where config.heldout_pairs keeps none")
        config = self.config
        stream = Stream(seed, "scene", split, index)
        nouns = self._draw_nouns(stream, split, stream.choice(config.object_counts))
        objects = tuple(
            SceneObject(
                noun=noun,
                colour=stream.choice(
                    self._train_colours[noun] if split == "train" else self._colours
                ),
                size=stream.choice(SIZES),
            )
            for noun in nouns
        )
        relation = stream.choice(config.relations)
        textured = stream.chance(config.textured_share)
        background = PLAIN + stream.below(TEXTURED) if textured else stream.below(PLAIN)
        return Scene(
            seed=seed,
            split=split,
            index=index,
            objects=self._place(objects, relation, stream),
            relation=relation,
            background=background,
            phrasing=stream.choice(config.phrasings),
            colours_named=_draw_named(stream, config, len(nouns)),
            sizes_named=stream.chance(config.size_share),
        )

    def render(self, scene: Scene) -> NDArray[np.uint8]:
        """The picture: uint8 ``[resolution, resolution, 3]``, RGB."""
        canvas = self._backgrounds[scene.background].copy()
        for item in scene.objects:
            sprite = self._bank.sprite(
                item.noun, colour=item.colour, size=item.size, objects=len(scene.objects)
            )
            x0, y0, x1, y1 = item.box
            patch = canvas[y0:y1, x0:x1]
            patch *= sprite.clear
            patch += sprite.colour
        return np.asarray(canvas + 0.5).clip(0, 255).astype(np.uint8)

    def batch(self, indices: Iterable[int], *, seed: int = 0, split: str = "train") -> SceneBatch:
        """Draws and renders the scenes with these numbers, see scene."""
        scenes = [self.scene(int(index), seed=seed, split=split) for index in indices]
        side = self.config.resolution
        images = np.empty((len(scenes), side, side, 3), dtype=np.uint8)
        for row, scene in enumerate(scenes):
            images[row] = self.render(scene)
        return SceneBatch(
            images=images, captions=[scene.caption for scene in scenes], scenes=scenes
        )

    def vocabulary(self) -> list[str]:
        """Every word of every caption and test pair that this configuration can give, sorted."""
        texts = [*self._nouns, *self._colours, *SIZES, "a", "an", "the", "and", ","]
        texts += [RELATIONS[name] for name in self.config.relations]
        frames = [PHRASINGS[name] for name in self.config.phrasings]
        texts += [frame.format(subject="", relation="", others="") for frame in frames]
        return sorted({word for text in texts for word in text.split()})

    def _pairs_of(self, name: str) -> list[frozenset[str]]:
        return [pair for pair in self.heldout.pairs if name in pair]

    def _draw_nouns(self, stream: Stream, split: str, count: int) -> list[str]:
        if split == "any":
            return stream.shuffled(self._nouns)[:count]
        for _ in range(MAX_TRIES):
            first = stream.choice(self._nouns)
            nouns = [first, stream.choice(self._partners[split][first])]
            for _ in range(count - 2):
                free = [
                    name
                    for name in self._nouns
                    if name not in nouns
                    and (split != "train" or all(name in self._partners[split][n] for n in nouns))
                ]
                if not free:
                    break
                nouns.append(stream.choice(free))
            if len(nouns) == count:
                return nouns
        raise RuntimeError(f"heldout_pairs leaves too few nouns to show {count} together")

    def _place(
        self, objects: tuple[SceneObject, ...], relation: str, stream: Stream
    ) -> tuple[SceneObject, ...]:
        sprites = [
            self._bank.sprite(item.noun, colour=item.colour, size=item.size, objects=len(objects))
            for item in objects
        ]
        boxes = place(
            [(sprite.width, sprite.height) for sprite in sprites],
            relation=relation,
            resolution=self.config.resolution,
            stream=stream,
        )
        return tuple(replace(item, box=box) for item, box in zip(objects, boxes, strict=True))


def normalise(images: NDArray[np.uint8] | torch.Tensor) -> torch.Tensor:
    """Pictures as a model takes them: ``(x / 255 - 0.5) / 0.25``.

    Args:
        images: uint8 [B, H, W, 3] as an array, or uint8 [B, 3, H, W] as a tensor.

    Returns:
        float32 ``[B, 3, H, W]``, about -2 to 2.
    """
    if not isinstance(images, torch.Tensor):
        images = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
    return images.float().div_(255).sub_(0.5).div_(0.25).contiguous()


def _ordered(names: tuple[str, ...], kept: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in kept)


def _draw_named(stream: Stream, config: SceneConfig, count: int) -> tuple[bool, ...]:
    kind = stream.uniform()
    single = stream.below(count)
    if kind < config.bare_share:
        return (False,) * count
    if kind < config.bare_share + config.single_share:
        return tuple(i == single for i in range(count))
    return (True,) * count
