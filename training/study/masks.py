"""MACCO's masks of the demo's scenes, whose boxes and words are known exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms import Compose, RandomResizedCrop

from slipform_training.data import Stream
from slipform_training.demo.material import Gather, Material
from slipform_training.finetune import Batch
from slipform_training.macco.crop import Crop, RecordedCrop
from slipform_training.macco.masks import ConceptMasks
from slipform_training.macco.patch_mask import Grid
from slipform_training.macco.rows import Concepts, Phrase
from slipform_training.macco.word_mask import WordFinder
from slipform_training.scenes import Scene


def scene_concepts(scene: Scene) -> Concepts:
    """The scene's named colours with their objects, and its relation with all objects."""
    phrases = [
        Phrase(f"{item.colour} {item.noun}", "attribute", [list(item.box)], (item.noun,))
        for item, named in zip(scene.objects, scene.colours_named, strict=True)
        if named
    ]
    word = scene.relation  # its name is the word that tells it from the others
    subject, *others = scene.objects
    relation = Phrase(
        f"{subject.noun} {word} {others[0].noun}",
        "relation",
        [list(item.box) for item in scene.objects],
        tuple(item.noun for item in scene.objects),
    )
    return Concepts(
        objects=[item.noun for item in scene.objects],
        attributes=[phrase.text.split()[0] for phrase in phrases],
        relations=[word],
        phrases=[relation, *phrases],
    )


def masked_gather(material: Material, *, seed: int, patch: int, random_masks: bool) -> Gather:
    """Stage 2's batches with word_mask [N, L] and patch_mask [N, P].

    patch: side of a patch in pixels. random_masks: masks of the same size at random places.
    """
    side = material.images.shape[-1]
    whole = RecordedCrop(Compose([RandomResizedCrop(side, scale=(1.0, 1.0), ratio=(1.0, 1.0))]))
    masks = ConceptMasks(
        whole,
        WordFinder(material.tokenizer),
        Grid(side, side, patch, patch),
        random_masks=random_masks,
    )
    gather = material.branch_gather()

    def masked(indices: NDArray[np.int64], step: int) -> Batch:
        found = [
            masks.of(
                material.captions[index],
                scene_concepts(material.scenes[index]),
                Crop(0, 0, side, side, side, side),
                Stream(seed, "mask", step, index),
            )[0]
            for index in indices.tolist()
        ]
        return replace(
            gather(indices, step),
            word_mask=torch.stack([one["word_mask"] for one in found]),
            patch_mask=torch.stack([one["patch_mask"] for one in found]),
        )

    return masked
