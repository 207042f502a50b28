"""`slipform bench report`: the page, the figures, and what it says of what is missing."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from slipform_training import cli
from slipform_training.benchmarks_report import Folder
from slipform_training.benchmarks_report.figures import FIGURES, stored_digest
from support import bench_results


def report(results, out) -> int:
    return cli.main(["bench", "report", "--results", str(results), "--out", str(out)])


def test_page_and_figures_are_written_and_gaps_are_named(results, tmp_path, capsys):
    out = tmp_path / "out"
    assert report(results, out) == 0
    page = (out / "report.md").read_text()
    for name in ("loss_time_cpu", "loss_memory_cpu"):
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert f"]({name}.png)" in page
    assert sorted(path.name for path in out.iterdir()) == [
        "loss_memory_cpu.png",
        "loss_time_cpu.png",
        "report.md",
    ]
    assert "Not yet measured on a GPU." in page
    shown = capsys.readouterr().out
    assert "not yet measured: encoder-step-cpu" in shown
    assert "loss-throughput-gpu" in shown.split("not yet measured:")[1]


def test_results_of_a_gpu_have_figures_of_their_own(results, tmp_path):
    bench_results.write(
        results, "loss_memory_gpu", bench_results.memory(), gpu="Some GPU", command="x"
    )
    assert report(results, tmp_path / "out") == 0
    assert (tmp_path / "out" / "loss_memory_gpu.png").exists()
    assert "_Some GPU, torch 2.9.0, 2026-02-03" in (tmp_path / "out" / "report.md").read_text()


def drawn_lines(results, monkeypatch, name: str):
    """The figure's axes, kept open."""
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "close", lambda figure: None)
    (figure,) = [figure for figure in FIGURES if figure.name == name]
    folder = Folder(results)
    figure.draw(results / "x.png", figure.results(folder), folder)
    return plt.gcf().axes, plt.gcf().legends[0]


def test_every_peer_is_a_line_and_failing_ones_are_dashed_and_named_so(results, monkeypatch):
    axes, legend = drawn_lines(results, monkeypatch, "loss_time_cpu")
    assert [one.get_title() for one in axes] == ["D = 512, fp32", "D = 512, bf16"]
    for one in axes:
        assert (one.get_xscale(), one.get_yscale()) == ("log", "log")
        lines = {line.get_label(): line for line in one.get_lines()}
        assert set(bench_results.COSTS) < set(lines)
        dashed = {name for name, line in lines.items() if line.get_linestyle() == "--"}
        assert dashed == {"Liger-Kernel", "cut-cross-entropy"}
        # open_clip was not run at the largest size.
        assert list(lines["open_clip"].get_xdata()) == [256, 1024, 4096]
    looks = [(line.get_color(), line.get_marker(), line.get_mfc()) for line in axes[0].get_lines()]
    assert len(set(looks[:-2])) == len(bench_results.COSTS)
    names = [text.get_text() for text in legend.get_texts()]
    assert "Liger-Kernel (fails the accuracy bar: bf16, fp32)" in names


def test_the_bound_is_drawn_from_the_products_of_the_run(results, monkeypatch):
    axes, _ = drawn_lines(results, monkeypatch, "loss_time_cpu")
    for one in axes:
        four, three = (line.get_ydata() for line in one.get_lines()[-2:])
        unit = [bench_results.unit_seconds(N, 512) for N in bench_results.SIZES]
        assert four == pytest.approx([4 * value for value in unit])
        assert three == pytest.approx([3 * value for value in unit])


def test_memory_is_drawn_in_mib(results, monkeypatch):
    rows = [row for row in bench_results.memory() if row["peer"] in ("open_clip", "slipform torch")]
    for row in rows:
        if row["peer"] == "slipform torch":
            row["extra_bytes"] = 0
    bench_results.write(results, "loss_memory_cpu", rows)
    axes, _ = drawn_lines(results, monkeypatch, "loss_memory_cpu")
    lines = {line.get_label(): line for line in axes[0].get_lines()}
    assert list(lines["open_clip"].get_ydata()) == pytest.approx([1, 16, 256])
    # What grew by nothing is drawn at a page.
    assert set(lines["slipform torch"].get_ydata()) == {4096 / 2**20}


def test_a_figure_keeps_the_digest_of_what_it_shows(results, tmp_path):
    (figure,) = [figure for figure in FIGURES if figure.name == "loss_memory_cpu"]
    folder = Folder(results)
    path = tmp_path / "x.png"
    figure.draw(path, figure.results(folder), folder)
    digest = figure.digest(figure.results(folder), folder)
    assert stored_digest(path) == digest
    rows = bench_results.memory()
    rows[0]["extra_bytes"] += 1
    bench_results.write(results, "loss_memory_cpu", rows)
    assert figure.digest(figure.results(folder), folder) != digest
    bench_results.write(results, "loss_memory_cpu", bench_results.memory())
    assert figure.digest(figure.results(folder), folder) == digest
    # Whether a peer passes is drawn too.
    (results / "loss_accuracy_cpu.json").unlink()
    assert figure.digest(figure.results(folder), folder) != digest


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "loss_memory_cpu.json").write_text("{"), "loss_memory_cpu.json"),
        (lambda folder: [path.unlink() for path in folder.iterdir()], "expected one at least"),
    ],
)
def test_unusable_results_end_in_one_line(results, tmp_path, capsys, spoil, message):
    spoil(results)
    assert report(results, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith("slipform: error: ")
    assert error.count("\n") == 1
    assert message in error


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert report(tmp_path / "absent", tmp_path / "out") == 2
    assert "absent, expected a folder of results" in capsys.readouterr().err
