"""The settings of ``slipform train``: a dataclass that the yaml file and the flags both fill."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_type_hints

from slipform_training.macco.config import MaccoConfig

FORMATS = ("auto", "jsonl", "tsv", "csv", "coco", "shards", "macco")
LOSSES = ("clip", "negclip", "cement", "triplet", "siglip")
OBJECTIVES = ("contrastive", "macco")
# The losses that masked images and captions can join.
MACCO_LOSSES = ("clip", "negclip", "cement")
# Settings of the objective "macco", under the names of MaccoConfig.
MACCO_SETTINGS = (
    "mca",
    "mir",
    "mlm",
    "mim",
    "text_layers",
    "image_layers",
    "predictor_lr",
    "predictor_weight_decay",
)
# These losses need hard captions, and "triplet" a hard image of each as well.
HARD_LOSSES = ("negclip", "cement", "triplet")

_REQUIRED = ("model", "data", "out")


def _setting(default: Any, help_text: str, *, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help_text, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training run; the help of `slipform train` says what each one means.

    `choices` and the ranges below are checked when a configuration is made; ValueError names the
    setting, its value and what was expected. Batch sizes are those of one process: under torchrun
    with W processes an update sees W times as many samples.
    """

    model: str = _setting("", "open_clip model name, or a json file with a model configuration")
    pretrained: str | None = _setting(
        None, "weights to start from: an open_clip tag or a file (none: random weights)"
    )
    data: str = _setting(
        "",
        "mined jsonl, NegCLIP's or MACCO's tsv, a csv, COCO captions json, or tar shards (a file, "
        "a folder)",
    )
    images: str = _setting(".", "folder that relative paths of images begin at")
    out: str = _setting("", "folder for the checkpoint, the log and the resolved configuration")

    format: str = _setting("auto", "format of data; auto: what it looks like", choices=FORMATS)
    image_column: str = _setting("filepath", "tsv, csv: column of the image's path")
    caption_column: str = _setting("title", "tsv, csv: column of the caption")
    hard_caption_column: str = _setting("neg_caption", "tsv, csv: column of the hard captions")
    concreteness_column: str = _setting("concreteness", "tsv, csv: column of their concreteness")

    val_data: str | None = _setting(None, "data for validation, in a format like data (none: none)")
    val_images: str | None = _setting(None, "folder of its images (none: images)")
    val_interval: int = _setting(500, "updates between validations (0: at the end only)")
    val_samples: int = _setting(1000, "samples of val_data, at most")

    loss: str = _setting("clip", "the loss", choices=LOSSES)
    hard_captions: int = _setting(1, "hard captions of a sample in a batch, drawn anew each epoch")
    margin: float | None = _setting(
        None, "cement: margin at concreteness 5, default 0.05; triplet: constant, default 0"
    )
    margin_direction: str = _setting(
        "increasing",
        "cement: margin by concreteness",
        choices=("increasing", "decreasing"),
    )
    margin_unit: str = _setting(
        "cosine", "cement: what the margin is added to", choices=("cosine", "logit")
    )
    margin_static: bool = _setting(False, "cement: the mean margin for every hard caption")
    hard_images: bool = _setting(
        False, "cement: hard images too, each the positive of its hard caption"
    )
    exchange: str = _setting(
        "gather",
        "many ranks: how features travel (docs/scaling.md)",
        choices=("gather", "ring", "none"),
    )

    objective: str = _setting(
        "contrastive",
        "the loss alone, or with masked words and patches (macco: with clip, negclip, cement)",
        choices=OBJECTIVES,
    )
    macco_random_masks: bool = _setting(
        False, "macco: masks of the same size at random places, to compare with"
    )
    macco_random_probability: float = _setting(
        0.1, "macco: how often a random rectangle of patches is masked instead of a phrase's"
    )
    mca: float = _setting(1.0, "macco: weight of cross-modal alignment, the loss included")
    mir: float = _setting(0.1, "macco: weight of intra-modal alignment")
    mlm: float = _setting(20.0, "macco: weight of masked words")
    mim: float = _setting(250.0, "macco: weight of masked patches")
    text_layers: int = _setting(2, "macco: blocks that predict words (4 for ViT-B/16, ViT-L/14)")
    image_layers: int = _setting(3, "macco: blocks that predict patches (6 for these)")
    predictor_lr: float = _setting(1e-3, "macco: peak learning rate of predictors, mask tokens")
    predictor_weight_decay: float = _setting(0.01, "macco: AdamW's, of their matrices")

    steps: int | None = _setting(None, "number of updates; instead of epochs")
    epochs: float | None = _setting(None, "passes over the data; instead of steps, default 1")
    batch_size: int = _setting(256, "samples of one contrastive batch, in each process")
    accumulation: int = _setting(1, "contrastive batches of an update")
    chunk_size: int | None = _setting(
        None, "gradient caching: samples that are encoded at a time (none: all)"
    )
    lr: float = _setting(1e-6, "peak learning rate")
    weight_decay: float = _setting(0.1, "AdamW's, of matrices")
    beta1: float = _setting(0.9, "AdamW's")
    beta2: float = _setting(0.98, "AdamW's")
    eps: float = _setting(1e-6, "AdamW's")
    warmup_steps: int = _setting(50, "updates of linear warm-up, at most the updates of the run")
    schedule: str = _setting("cosine", "after the warm-up", choices=("cosine", "constant"))
    grad_clip_norm: float | None = _setting(None, "largest norm of the gradient (none: any)")
    logit_scale_max: float = _setting(100.0, "upper clamp of the logit scale")
    precision: str = _setting("fp32", "of the forward pass", choices=("fp32", "bf16", "fp16"))
    seed: int = _setting(0, "of weights, order, augmentation and choices")

    augment: bool = _setting(True, "open_clip's training transform; else that of evaluation")
    on_error: str = _setting(
        "raise", "a sample that cannot be used: stop, or count and go on", choices=("raise", "skip")
    )
    workers: int = _setting(0, "processes that load images, for each training process")
    device: str = _setting("auto", "auto, cpu, cuda, ...")
    log_interval: int = _setting(10, "updates between records of the log")
    checkpoint_interval: int = _setting(500, "updates between checkpoints (0: at the end only)")
    tensorboard: bool = _setting(True, "write events for TensorBoard as well, if installed")
    progress: bool = _setting(True, "a progress bar")
    resume: bool = _setting(True, "go on from the checkpoint in out, if there is one")

    def __post_init__(self) -> None:
        for name in _REQUIRED:
            if not getattr(self, name):
                raise ValueError(f"{name}: got nothing, expected {help_of(name)}")
        for one in fields(self):
            choices = one.metadata["choices"]
            if choices and getattr(self, one.name) not in choices:
                raise ValueError(
                    f"{one.name}: got {getattr(self, one.name)!r}, "
                    f"expected one of {', '.join(choices)}"
                )
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"steps: got {self.steps} and epochs {self.epochs}, expected one")
        is_cement = self.loss == "cement"
        only_cement = f"its default with the loss {self.loss}, which has no such margin"
        only_margin = f"none with the loss {self.loss}"
        only_hard = f"1 with the loss {self.loss}, which uses none"
        is_macco = self.objective == "macco"
        only_macco = f"its default with the objective {self.objective}"
        only_pairs = f"one of {', '.join(MACCO_LOSSES)} with the objective macco"
        rules = (
            ("hard_captions", self.hard_captions >= 1, "at least 1"),
            ("hard_captions", self.loss != "triplet" or self.hard_captions == 1, "1 with triplet"),
            (
                "hard_captions",
                not self.hard_images or self.hard_captions == 1,
                "1 with hard_images",
            ),
            ("hard_images", is_cement or not self.hard_images, "false but for the loss cement"),
            ("hard_captions", self.hard_captions == 1 or self.loss in HARD_LOSSES, only_hard),
            ("margin", self.margin is None or 0 <= self.margin < math.inf, "at least 0"),
            ("margin", self.margin is None or self.loss in ("cement", "triplet"), only_margin),
            ("margin_direction", is_cement or self.margin_direction == "increasing", only_cement),
            ("margin_unit", is_cement or self.margin_unit == "cosine", only_cement),
            ("margin_static", is_cement or not self.margin_static, only_cement),
            ("loss", not is_macco or self.loss in MACCO_LOSSES, only_pairs),
            *(
                (name, is_macco or getattr(self, name) == default_of(name), only_macco)
                for name in (*MACCO_SETTINGS, "macco_random_masks", "macco_random_probability")
            ),
            ("steps", self.steps is None or self.steps >= 1, "at least 1"),
            ("epochs", self.epochs is None or 0 < self.epochs < math.inf, "above 0"),
            ("val_interval", self.val_interval >= 0, "at least 0"),
            ("val_samples", self.val_samples >= 1, "at least 1"),
            ("workers", self.workers >= 0, "at least 0"),
            ("macco_random_probability", 0 <= self.macco_random_probability <= 1, "0 to 1"),
            ("augment", self.augment or self.objective != "macco", "true with the objective macco"),
        )
        for name, valid, expected in rules:
            if not valid:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected {expected}")
        if is_macco:
            self.macco()

    def macco(self) -> MaccoConfig:
        """The settings of the objective "macco"; ValueError for one out of range."""
        return MaccoConfig(**{name: getattr(self, name) for name in MACCO_SETTINGS})

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, in their order."""
        return asdict(self)


def default_of(name: str) -> Any:
    """The default of the setting `name`."""
    return next(one.default for one in fields(TrainConfig) if one.name == name)


def help_of(name: str) -> str:
    """What the setting `name` is."""
    return next(one.metadata["help"] for one in fields(TrainConfig) if one.name == name)


def types_of() -> dict[str, tuple[type, bool]]:
    """Name of each setting -> its type, and whether it may be None."""
    found: dict[str, tuple[type, bool]] = {}
    for name, hint in get_type_hints(TrainConfig).items():
        members = getattr(hint, "__args__", (hint,))
        (kind,) = (member for member in members if member is not type(None))
        found[name] = kind, type(None) in members
    return found
