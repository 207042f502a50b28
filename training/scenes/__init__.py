"""Scenes of tinted emoji sprites with captions, for demonstrations and tests without downloads."""

from slipform_training.scenes.captions import Mention, caption_text, shuffle_words
from slipform_training.scenes.compose import Scene, SceneBatch, SceneObject, Scenes, normalise
from slipform_training.scenes.config import PHRASINGS, RELATIONS, SIZES, SceneConfig
from slipform_training.scenes.heldout import HeldOut
from slipform_training.scenes.nouns import COLOURS, CREDIT, NOUNS, Colour, Noun
from slipform_training.scenes.pairs import ScenePair, build_pairs, pair_images, write_pairs
from slipform_training.scenes.sheet import draw_labelled, draw_sheet

__all__ = [
    "COLOURS",
    "CREDIT",
    "NOUNS",
    "PHRASINGS",
    "RELATIONS",
    "SIZES",
    "Colour",
    "HeldOut",
    "Mention",
    "Noun",
    "Scene",
    "SceneBatch",
    "SceneConfig",
    "SceneObject",
    "ScenePair",
    "Scenes",
    "build_pairs",
    "caption_text",
    "draw_labelled",
    "draw_sheet",
    "normalise",
    "pair_images",
    "shuffle_words",
    "write_pairs",
]
