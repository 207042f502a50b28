"""Zero-shot classification as a task of ``slipform eval``: every image a scored item."""

from __future__ import annotations

import numpy as np
import torch

from slipform_training.evaluation.encoder import FeatureSource
from slipform_training.evaluation.labelled import read_class_folders
from slipform_training.evaluation.missing import find_images
from slipform_training.evaluation.scoring import count
from slipform_training.evaluation.suites import ImageRef, ImageRoots
from slipform_training.evaluation.tasks import ScoreTable, TaskRequest, TaskResult
from slipform_training.evaluation.zero_shot import (
    class_features,
    class_names,
    classify,
    read_templates,
)

_KS = (1, 5)


def run_zero_shot(request: TaskRequest, source: FeatureSource) -> TaskResult:
    """Top-1 and top-5 accuracy; subsets are the classes, so the macro mean is that per class.

    request.annotations: a folder with a subfolder of images for each class. request.class_names,
    request.templates: see zero_shot.class_names and read_templates.
    """
    folder = request.annotations
    data = read_class_folders(folder)
    classes = data.classes()
    names = class_names(classes, request.class_names)
    templates = read_templates(request.templates)
    references = [ImageRef("", str(path.relative_to(folder))) for path in data.paths]
    found = find_images(
        references, ImageRoots(folder), source, policy=request.missing, who="zero_shot"
    )
    kept = [place for place, image in enumerate(references) if image in found.place]
    number = {name: index for index, name in enumerate(classes)}
    targets = torch.tensor([number[data.labels[place][0]] for place in kept])
    images = found.features[torch.tensor([found.place[references[place]] for place in kept])]
    result = classify(images, class_features(source, names, templates), targets, classes)
    subset = [data.labels[place][0] for place in kept]
    own = np.array(subset, dtype=object)
    given = {name: sum(labels[0] == name for labels in data.labels) for name in classes}
    counts, margins = {}, []
    for k in _KS:
        margin = k - 0.5 - result.ranks.numpy()  # in ranks
        counts[f"top{k}"] = {
            name: count(margin[own == name], items=given[name], near=0.0) for name in classes
        }
        margins.append(margin)
    ids = [references[place].name for place in kept]
    return TaskResult(
        headline="top1",
        counts=counts,
        scores=ScoreTable(
            subset * len(_KS),
            ids * len(_KS),
            [f"top{k}" for k in _KS for _ in ids],
            np.concatenate(margins),
        ),
        missing=found.missing,
        unreadable=found.unreadable,
        details={
            "citation": "Radford et al. 2021, arXiv 2103.00020",
            "rule": "rank of the true class; equal similarities count against the model",
            "templates": len(templates),
            "class_names": dict(zip(classes, names, strict=True)),
            "ties": result.ties,
            "no_images_by_name": len(data.ignored),
        },
    )
