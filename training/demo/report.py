"""The demo's report: the same text on the terminal and in report.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipform_training.markdown import markdown_table
from slipform_training.scenes import CREDIT

from .config import BAG, LABELS
from .material import scene_config
from .results import Results, accuracy_table, legend, mean, shares_table, versions

INTRODUCTION = (
    "Stage 1 is order-free on purpose: it trains on captions whose words are shuffled anew each "
    "time, and so makes the bag-of-words model that the papers on hard negatives start from. "
    "Stage 2 goes on from it with the real captions, in three branches that differ in the loss "
    "alone: same weights at the start, same scenes, captions, hard captions and order."
)

BRANCH_NOTES = {
    "plain": "ClipLoss, InfoNCE over the batch; it does not see the hard captions.",
    "hard_negatives": "NegClipLoss, each image's softmax has the batch's hard captions too.",
    "cement": "CementLoss, and a margin on the image's own hard caption, {margin:g} (c - 1) / 4 in "
    "the cosine, c the concreteness of the replaced word, 1 to 5.",
}


def terminal_report(results: Results, *, folder: str) -> str:
    """The report as text for a terminal."""
    blocks = [
        "Accuracy on held-out pairs, %",
        aligned(accuracy_table(results)),
        *legend(results),
        "",
        SHARES_TITLE,
        aligned(shares_table(results)),
        SHARES_NOTE,
        "",
        _times(results),
        f"Written to {folder}: report.md, results.json, curves.png, sheet.png",
        CREDIT,
    ]
    return "\n".join(blocks)


def markdown_report(results: Results) -> str:
    """The report as a markdown page."""
    config = results.config
    margin_note = BRANCH_NOTES["cement"].format(margin=config.margin)
    notes = {**BRANCH_NOTES, "cement": margin_note}
    found = ", ".join(f"{name} {number}" for name, number in versions().items())
    blocks = [
        "# Slipform demo",
        INTRODUCTION,
        "\n".join(f"- **{LABELS[name]}**: {note}" for name, note in notes.items()),
        "## Accuracy on held-out pairs, %",
        markdown_table(accuracy_table(results)),
        "\n".join(f"- {line}" for line in legend(results)),
        "![Loss and accuracy curves, final accuracies, gradient shares](curves.png)",
        "![Scenes and the models' choices](sheet.png)",
        f"## {SHARES_TITLE}",
        markdown_table(shares_table(results)),
        SHARES_NOTE,
        "## The recipe",
        "\n".join(f"- {line}" for line in recipe(results)),
        _times(results),
        f"Versions: {found}.",
        CREDIT,
    ]
    return "\n\n".join(blocks) + "\n"


SHARES_TITLE = "Where the gradient on the positive comes from"
SHARES_NOTE = (
    "The pull on an image's positive is 1 - p+ = p_hard + p_easy (arXiv 2604.13313, section 2). "
    "Measured on the model after stage 1, on the same scenes cut into batches of each size: the "
    "larger the batch, the more its easy negatives crowd the hard ones out; a margin m multiplies "
    "p_hard / p_easy by exp(scale m)."
)


def recipe(results: Results) -> list[str]:
    """What was trained, as sentences with the settings of this run."""
    config = results.config
    boost = math.exp(results.logit_scale[BAG][0] * config.margin)
    scales = [value for column in results.logit_scale.values() for value in column]
    scenes = scene_config(config)
    relations = " and ".join(scenes.relations)
    mining = "; ".join(line for line in results.mining.splitlines() if line)
    return [
        f"{config.scenes} training scenes of two tinted sprites, {scenes.resolution} x "
        f"{scenes.resolution} pixels, relations {relations}; {scenes.heldout_pairs:.0%} of the "
        f"noun pairs and {scenes.heldout_colours:.0%} of the colour-noun combinations held out.",
        "open_clip CLIP of 1.8 million parameters: ModifiedResNet (1, 1, 1, 1) of width 16, "
        "2 text layers of width 128 over a reduced vocabulary.",
        f"Batch {config.batch_size}, AdamW, weight decay {config.weight_decay:g}, "
        f"{config.warmup_steps} warm-up updates, cosine. Stage 1: {config.bag_steps} updates, lr "
        f"{config.bag_lr:g}; each branch: {config.branch_steps} updates, lr {config.branch_lr:g}.",
        f"Logit scale learnt, at the ends {min(scales):.1f} to {max(scales):.1f} "
        f"(mean {mean(scales):.1f}).",
        f"Hard captions: {mining}. A step uses all of a scene's.",
        f"{config.seeds} seed(s), from 0: initial weights, order of the data, order of the words.",
        f"Margin {config.margin:g} at concreteness 5. The nouns' ratings, 4.5 to 5, give 0.9 to "
        "1 of it, the colours', 3.8 to 4.3, give 0.7 to 0.8; after stage 1 it multiplies p_hard / "
        f"p_easy of a noun by about {boost:.0f}.",
    ]


def _times(results: Results) -> str:
    parts = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in results.seconds.items())
    return f"Time: {parts}; {sum(results.seconds.values()):.0f} s together."


def aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
