"""The blocks that a report is made of, and the report as a page with figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slipform_training.mining.files import write_atomically

from . import losses, questions, roofline
from .figures import FIGURES
from .results import Folder, Results, ResultsError

REPORT = "report.md"


@dataclass(frozen=True)
class Block:
    """A table or two of one question.

    stem: of the file of results. make: writes the tables. command: what measures it, for results
    that do not say. after: how to read the tables, for the report.
    """

    title: str
    stem: str
    make: Callable[[Results, Folder], str]
    command: str
    after: str = ""

    def render(self, folder: Folder) -> str:
        """Tables, and the line on where and when; a sentence where nothing was measured."""
        results = folder.get(self.stem)
        tables = self.make(results, folder) if results else ""
        if not results or not tables:
            gpu = self.stem.endswith("_gpu")
            return "Not yet measured on a GPU." if gpu else "Not yet measured."
        return f"{tables}\n\n{results.provenance(self.command)}"


def _pytest(question: str) -> str:
    return f"python -m pytest benchmarks/test_{question}.py"


def _of_columns(chosen: tuple[questions.Column, ...]) -> Callable[[Results, Folder], str]:
    return lambda results, folder: questions.columns(results, chosen)


def _blocks(device: str) -> dict[str, Block]:
    """The blocks of the benchmarks of losses and steps, on one kind of device."""
    where = {"cpu": "CPU", "gpu": "GPU"}[device]

    def of(make: Callable[[Results, Folder, str], str]) -> Callable[[Results, Folder], str]:
        return lambda results, folder: make(results, folder, device)

    both = partial(losses.throughput, passes=("both",))
    halves = partial(losses.throughput, passes=("forward", "backward"))
    time, memory = f"loss_throughput_{device}", f"loss_memory_{device}"
    timed, weighed = _pytest("loss_throughput"), _pytest("loss_memory")
    return {
        f"loss-speed-{device}": Block(
            f"Speed of the loss, {where}", time, of(losses.speed_summary), timed
        ),
        f"loss-throughput-{device}": Block(
            f"Forward and backward, {where}: times as fast as open_clip", time, of(both), timed,
            "Medians of the ratios within a round; in brackets their interquartile range. Where "
            "open_clip cannot run: the time in products U at the fp32 rate of the run.",
        ),
        f"loss-passes-{device}": Block(
            f"Forward and backward apart, {where}: times as fast as open_clip", time, of(halves),
            timed,
        ),
        f"loss-memory-summary-{device}": Block(
            f"Memory of the loss, {where}", memory, of(losses.memory_summary), weighed
        ),
        f"loss-memory-{device}": Block(
            f"Extra memory of forward and backward, {where}", memory, of(losses.memory), weighed
        ),
        f"loss-accuracy-{device}": Block(
            f"The accuracy bar, {where}", f"loss_accuracy_{device}", of(losses.accuracy),
            _pytest("loss_accuracy"),
        ),
        f"roofline-{device}": Block(
            f"Fractions of the matmul rate, {where}", time, of(roofline.fractions), timed
        ),
        f"encoder-step-{device}": Block(
            f"A whole step with encoders, {where}", f"encoder_step_{device}",
            _of_columns(questions.ENCODER_STEP), _pytest("encoder_step"),
        ),
        f"sigmoid-{device}": Block(
            f"SigLIP's loss, {where}", f"sigmoid_throughput_{device}",
            _of_columns(questions.SIGMOID), _pytest("sigmoid_loss"),
        ),
    }  # fmt: skip


BLOCKS: Mapping[str, Block] = {
    **_blocks("cpu"),
    **_blocks("gpu"),
    "mining": Block(
        "Mining", "mining_cpu", _of_columns(questions.MINING),
        f"{_pytest('mining')} --captions valid_neg_clip.tsv",
    ),
    "macco-head": Block(
        "MACCO's head of masked words", "macco_head_cpu", _of_columns(questions.MACCO_HEAD),
        _pytest("macco_head"),
    ),
    "large-batch": Block(
        "A batch whose matrix could not be stored", "large_batch_cpu",
        _of_columns(questions.LARGE_BATCH), "python -m benchmarks.large_batch",
    ),
    "evaluation": Block(
        "Evaluation of cached features", "evaluation_cpu", _of_columns(questions.EVALUATION),
        "python -m benchmarks.evaluation",
    ),
    "roofline-gpu-estimate": Block(
        "GPUs, estimated from peak rates: no measurement", "static_roofline",
        lambda results, folder: roofline.gpu_estimate(results),
        "python -m benchmarks.static_report",
    ),
}  # fmt: skip
# Shorter forms of other blocks, for a README.
_SUMMARIES = ("loss-speed-", "loss-memory-summary-")


def write_report(results: Path, out: Path, *, say: Callable[[str], None] = print) -> list[Path]:
    """Write tables (report.md) and figures (png) of all results in a folder; returns the paths.

    What has not been measured is said so in the report, and drawn nowhere.

    Raises ResultsError, naming file and key, for a folder without results and for results that
    cannot be used.
    """
    if not results.is_dir():
        raise ResultsError(f"results: got {results}, expected a folder of results")
    folder = Folder(results)
    names = [name for name in BLOCKS if not name.startswith(_SUMMARIES)]
    present = [name for name in names if folder.get(BLOCKS[name].stem) is not None]
    if not present:
        stems = ", ".join(sorted({f"{BLOCKS[name].stem}.json" for name in names}))
        raise ResultsError(f"results: got {results} without any of {stems}, expected one at least")
    out.mkdir(parents=True, exist_ok=True)
    figures = write_figures(folder, out)
    parts = ["# Benchmarks"]
    for name in names:
        parts += [f"## {BLOCKS[name].title}", render(name, folder)]
        if BLOCKS[name].after and name in present:
            parts.append(BLOCKS[name].after)
    write_atomically(out / REPORT, "\n\n".join(parts) + "\n")
    say(f"measured: {', '.join(present)}")
    missing = [name for name in names if name not in present]
    if missing:
        say(f"not yet measured: {', '.join(missing)}")
    written = [out / REPORT, *figures]
    say(f"written to {out}: {', '.join(path.name for path in written)}")
    return written


def render(name: str, folder: Folder, *, figures: str = "") -> str:
    """A block with its figure, which lies in the folder `figures`, such as "figures/"."""
    images = [
        f"![{figure.title}]({figures}{figure.name}.png)"
        for figure in FIGURES
        if figure.beside == name and figure.results(folder) is not None
    ]
    return "\n\n".join([BLOCKS[name].render(folder), *images])


def write_figures(folder: Folder, out: Path) -> list[Path]:
    """Draw the figures whose results there are; returns their paths."""
    written = []
    for figure in FIGURES:
        results = figure.results(folder)
        if results is not None:
            written.append(out / f"{figure.name}.png")
            figure.draw(written[-1], results, folder)
    return written
