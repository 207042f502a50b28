"""What each study compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from slipform_kernels import CementLoss, ClipLoss, NegClipLoss
from slipform_training.concreteplant import MinerOptions
from slipform_training.demo import DemoConfig
from slipform_training.demo.material import MINING
from slipform_training.macco import MaccoConfig, MaccoLoss


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One way to go on from stage 1.

    name: folder of its runs and key of its results. label, note: for the reader.
    loss: makes the loss. mining: how its hard captions are mined, None for the demo's. macco: terms
    of MACCO beside the loss, None for none; random_masks: not of the concepts.
    """

    name: str
    label: str
    note: str
    loss: Callable[[DemoConfig], nn.Module]
    mining: MinerOptions | None = None
    macco: MaccoConfig | None = None
    random_masks: bool = False

    def full_loss(self, config: DemoConfig) -> nn.Module:
        """The loss, with MACCO's terms beside it where the branch has them."""
        loss = self.loss(config)
        return loss if self.macco is None else MaccoLoss(loss, self.macco)


@dataclass(frozen=True)
class Contrast:
    """A question: what does branch `name` gain over branch `over`?"""

    name: str
    over: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """Branches from the same start, and the contrasts that the report draws between them.

    image_tower: of the demo's. settings: further fields of DemoConfig that a full run has other
    than the demo.
    """

    name: str
    title: str
    branches: tuple[Branch, ...]
    contrasts: tuple[Contrast, ...]
    image_tower: str = "resnet"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, *, seeds: int, quick: bool = False) -> DemoConfig:
        """The settings of a full run, or of one of seconds, which goes through everything."""
        if quick:
            return DemoConfig.quick(seeds=seeds, image_tower=self.image_tower)
        return DemoConfig(seeds=seeds, image_tower=self.image_tower, **self.settings)

    def branch(self, name: str) -> Branch:
        """The branch called `name`."""
        return next(branch for branch in self.branches if branch.name == name)


PLAIN = Branch(
    name="plain",
    label="InfoNCE",
    note="ClipLoss; no hard captions.",
    loss=lambda config: ClipLoss(),
)
_CEMENT = Branch(
    name="cement",
    label="Cement",
    note="CementLoss; the margin grows with the replaced word's concreteness.",
    loss=lambda config: CementLoss(margin=config.margin),
)
# One replaced word a caption, of its two most or least concrete: nouns, or colours where any is
# named. The captions' other words, below 3.7, have no replacement in this corpus.
_ONE_WORD = replace(MINING, k=2, rewriters=("replace",), min_concreteness=3.7, tolerance=0.5)

_HARD = Branch(
    name="hard_negatives",
    label="no margin",
    note="NegClipLoss: the hard captions without a margin.",
    loss=lambda config: NegClipLoss(),
)

MARGINS = Study(
    name="margins",
    title="The margin, its direction, and which words are replaced",
    branches=(
        PLAIN,
        _HARD,
        _CEMENT,
        Branch(
            name="cement_static",
            label="static margin",
            note="CementLoss(static=True): every hard caption of a batch has the mean margin.",
            loss=lambda config: CementLoss(margin=config.margin, static=True),
        ),
        Branch(
            name="cement_decreasing",
            label="decreasing margin",
            note="CementLoss(direction='decreasing'): the margin falls with concreteness.",
            loss=lambda config: CementLoss(margin=config.margin, direction="decreasing"),
        ),
        replace(
            _CEMENT,
            name="targets_high",
            label="concrete targets",
            note="Cement; one hard caption each: one of the two most concrete words, the nouns, is "
            "replaced.",
            mining=_ONE_WORD,
        ),
        replace(
            _CEMENT,
            name="targets_low",
            label="less concrete targets",
            note="Cement; one hard caption each: one of the two least concrete words is replaced, "
            "a colour where one is named, else a noun: so what is replaced differs as well.",
            mining=replace(_ONE_WORD, targets="low"),
        ),
    ),
    contrasts=(
        Contrast("cement", "plain"),
        Contrast("hard_negatives", "plain"),
        Contrast("cement", "hard_negatives"),
        Contrast("cement", "cement_static"),
        Contrast("cement", "cement_decreasing"),
        Contrast("targets_high", "targets_low"),
    ),
)

# The paper's blocks are as wide as ViT-B/32 features, 512; these models' are 64.
_FULL = MaccoConfig(heads=4)
# The paper's CLIP is trained already, with a learning rate of 5e-7 where the predictors have 1e-3.
# Here both have 1e-3, so with its weights reconstruction is nearly all of the gradient.
_LIGHT = {"mlm": _FULL.mlm / 100, "mim": _FULL.mim / 100}


def _masked(name: str, label: str, note: str, **changes: Any) -> Branch:
    return Branch(
        name=name,
        label=label,
        note=note,
        loss=lambda config: ClipLoss(),
        macco=replace(_FULL, **changes),
    )


MACCO = Study(
    name="macco",
    title="MACCO and its ablations",
    image_tower="vit",
    settings={"bag_lr": 1e-3, "branch_steps": 150},
    branches=(
        PLAIN,
        _masked("macco", "MACCO", "all four terms, with the paper's weights."),
        _masked("macco_no_mca", "no MCA", "without cross-modal alignment of masked pairs.", mca=0),
        _masked("macco_no_mir", "no MIR", "without intra-modal alignment.", mir=0),
        _masked("macco_mlm", "MLM only", "InfoNCE and masked words.", mca=0, mir=0, mim=0),
        _masked("macco_mim", "MIM only", "InfoNCE and masked patches.", mca=0, mir=0, mlm=0),
        replace(
            _masked("macco_random", "random masks", "all terms; masks of the same size anywhere."),
            random_masks=True,
        ),
        _CEMENT,
        replace(
            _masked("macco_cement", "MACCO + Cement", "all terms, and Cement's hard captions."),
            loss=_CEMENT.loss,
        ),
        _masked(
            "macco_light", "MACCO light", "reconstruction at a hundredth of its weight.", **_LIGHT
        ),
        replace(
            _masked(
                "macco_light_cement", "MACCO light + Cement", "the same, and Cement's.", **_LIGHT
            ),
            loss=_CEMENT.loss,
        ),
    ),
    contrasts=(
        Contrast("macco", "plain"),
        Contrast("macco", "macco_no_mca"),
        Contrast("macco", "macco_no_mir"),
        Contrast("macco", "macco_mlm"),
        Contrast("macco", "macco_mim"),
        Contrast("macco", "macco_random"),
        Contrast("macco_cement", "cement"),
        Contrast("macco_light", "plain"),
        Contrast("macco_light_cement", "cement"),
    ),
)


def _of_margin(margin: float) -> Branch:
    return Branch(
        name=f"cement_{margin:g}".replace(".", "_"),
        label=f"Cement {margin:g}",
        note=f"CementLoss(margin={margin:g}).",
        loss=lambda config: CementLoss(margin=margin),
    )


SWEEP = Study(
    name="sweep",
    title="How large a margin",
    branches=(PLAIN, _HARD, _of_margin(0.02), _of_margin(0.05), _of_margin(0.1), _CEMENT),
    contrasts=tuple(
        Contrast(name, "plain")
        for name in ("hard_negatives", "cement_0_02", "cement_0_05", "cement_0_1", "cement")
    ),
)

EARLY = Study(
    name="early",
    title="From a start that does not know all nouns yet",
    settings={"bag_steps": 100},
    branches=(PLAIN, _HARD, _CEMENT),
    contrasts=(
        Contrast("cement", "plain"),
        Contrast("hard_negatives", "plain"),
        Contrast("cement", "hard_negatives"),
    ),
)

STUDIES = {study.name: study for study in (MARGINS, SWEEP, EARLY, MACCO)}
