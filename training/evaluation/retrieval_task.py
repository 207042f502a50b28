"""Retrieval as a task of ``slipform eval``: recalls both ways, every query a scored item."""

from __future__ import annotations

import numpy as np
import torch

from slipform_training.evaluation.encoder import FeatureSource
from slipform_training.evaluation.missing import find_images
from slipform_training.evaluation.retrieval import Direction, retrieve
from slipform_training.evaluation.retrieval_data import read_retrieval
from slipform_training.evaluation.scoring import Count
from slipform_training.evaluation.suites import ImageRef
from slipform_training.evaluation.tasks import ScoreTable, TaskRequest, TaskResult

_KS = (1, 5, 10)
_SUBSET = "all"


def run_retrieval(request: TaskRequest, source: FeatureSource) -> TaskResult:
    """Recall at 1, 5 and 10 of captions by images and of images by captions; see retrieve.

    request.annotations: Karpathy's json (of it request.split), COCO captions, jsonl, tsv or csv.
    Images that cannot be used are left out with their captions, which makes the rest easier, so
    figures of incomplete sets are not comparable; they are counted.
    """
    data = read_retrieval(request.annotations, split=request.split, columns=request.columns)
    reference = {name: ImageRef("retrieval", name) for name in data.images}
    found = find_images(
        reference.values(), request.roots, source, policy=request.missing, who="retrieval"
    )
    kept = data.where(lambda name: reference[name] in found.place)
    rows = torch.tensor([found.place[reference[name]] for name in kept.images])
    result = retrieve(found.features[rows], source.texts(kept.captions), kept.image_of)
    captions = [f"{kept.images[image]}#{number}" for number, image in enumerate(kept.image_of)]
    counts, ids, metrics, margins = {}, [], [], []
    for name, direction, queries, items in (
        ("image_to_text", result.image_to_text, list(kept.images), len(data.images)),
        ("text_to_image", result.text_to_image, captions, len(data.captions)),
    ):
        for k in _KS:
            metric = f"{name} R@{k}"
            counts[metric] = {_SUBSET: _count(direction, k, items)}
            ids += queries
            metrics += [metric] * len(queries)
            # In ranks: half a rank inside or outside of the first k.
            margins.append(k - 0.5 - direction.ranks.numpy())
    return TaskResult(
        headline="image_to_text R@1",
        counts=counts,
        scores=ScoreTable([_SUBSET] * len(ids), ids, metrics, np.concatenate(margins)),
        missing=found.missing,
        unreadable=found.unreadable,
        details={
            "citation": "Karpathy & Fei-Fei 2015, arXiv 1412.2306",
            "rule": "rank of the best own candidate; equal similarities count against the model",
            **result.to_dict(),
        },
    )


def _count(direction: Direction, k: int, items: int) -> Count:
    """ties: queries with a candidate exactly as similar as their own best one, at any rank."""
    return Count(
        items=items,
        scored=len(direction.ranks),
        correct=int((direction.ranks < k).sum()),
        ties=direction.ties,
        near_ties=direction.ties,
    )
