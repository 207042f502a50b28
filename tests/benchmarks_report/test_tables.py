"""Tables of benchmarks: figures worked out by hand, peers in order, nothing dropped in silence."""

from __future__ import annotations

import json

import pytest

from slipform_training.benchmarks_report import BLOCKS, Folder, ResultsError, render, words
from slipform_training.benchmarks_report.roofline import bound_seconds
from support import bench_results
from support.bench_results import REASON, unit_seconds


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, without the ruler."""
    found: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not inside:
                found.append([])
            if not all(set(cell) <= set("-:") for cell in cells):
                found[-1].append(cells)
        inside = line.startswith("|")
    return found


def cell(table: list[list[str]], row: str, column: str) -> str:
    (line,) = [line for line in table if line[0] == row]
    return line[table[0].index(column)]


def test_times_as_fast_are_the_rows_ratios(results):
    text = render("loss-throughput-cpu", Folder(results))
    fp32, bf16 = tables(text)
    assert fp32[0] == ["peer", "N = 256", "N = 1,024", "N = 4,096", "N = 16,384"]
    # open_clip takes 12 products, native 5, cached 4: 2.4 and 3 times, with a tenth of spread.
    assert cell(fp32, "slipform native", "N = 1,024") == "2.40 (0.24)"
    assert cell(fp32, "slipform native, cached", "N = 256") == "3.00 (0.30)"
    assert cell(bf16, "open_clip, compiled", "N = 4,096") == "1.33 (0.13)"


def test_ours_come_first_then_open_clip_and_failing_peers_are_marked(results):
    text = render("loss-throughput-cpu", Folder(results))
    assert [line[0] for line in tables(text)[0][1:]] == [
        "slipform native",
        "slipform native, cached",
        "slipform torch",
        "open_clip",
        "open_clip, compiled",
        "checkpointed chunks",
        "Liger-Kernel †",
        "cut-cross-entropy †",
        "GradCache-style",
    ]
    assert "† fails the accuracy bar." in text


def test_a_peer_fails_in_the_dtype_in_which_it_fails(results):
    rows = bench_results.accuracy()
    for row in rows:
        row["passes"] = (row["peer"], row["dtype"], row["problem"]) != (
            "slipform torch", "bf16", "separated",
        )  # fmt: skip
    bench_results.write(results, "loss_accuracy_cpu", rows)
    fp32, bf16 = tables(render("loss-throughput-cpu", Folder(results)))
    assert "slipform torch" in [line[0] for line in fp32]
    assert "slipform torch †" in [line[0] for line in bf16]


def test_what_was_not_run_is_named_with_its_sizes_and_reason(results):
    text = render("loss-throughput-cpu", Folder(results))
    assert cell(tables(text)[0], "open_clip", "N = 16,384") == words.NOTHING
    assert f"open_clip at N = 16,384 ({REASON})" in text
    assert "inf-cl at N = 256, 1,024, 4,096, 16,384 (needs a GPU)" in text


def test_without_open_clip_the_time_is_in_products(results):
    rows = [row for row in bench_results.throughput() if "not_run" not in row]
    for row in rows:
        if row["N"] == 16384:
            del row["eager_ratio"], row["eager_ratio_iqr"]
    bench_results.write(results, "loss_throughput_cpu", rows)
    fp32, bf16 = tables(render("loss-throughput-cpu", Folder(results)))
    assert cell(fp32, "slipform native", "N = 16,384") == "5.00 U"
    assert cell(bf16, "slipform native", "N = 16,384") == "2.50 U"


def test_names_of_the_command_line_are_written_out(results):
    rows = [{**row, "peer": "native_cached"} for row in bench_results.throughput()[6:9]]
    bench_results.write(results, "loss_throughput_cpu", rows)
    (table,) = tables(render("loss-throughput-cpu", Folder(results)))
    assert table[1][0] == "slipform native, cached"


def test_the_readmes_table_has_our_paths_beside_4U(results):
    (table,) = tables(render("loss-speed-cpu", Folder(results)))
    assert table[0][:3] == ["N", "features", "slipform native, times as fast"]
    assert table[0][-1] == "slipform native / 4U"
    # 5 products of 4 in fp32, half of that in bf16.
    assert [line[-1] for line in table[1:3]] == ["1.25", "0.62"]
    assert [line[:3] for line in table[1:3]] == [["256", "fp32", "2.40"], ["256", "bf16", "2.40"]]


def test_memory_in_mib_and_how_many_times_less(results):
    (table,) = tables(render("loss-memory-summary-cpu", Folder(results)))
    (line,) = [line for line in table if line[:2] == ["4,096", "fp32"]]
    # A quarter of a byte an entry, and 16: 4 and 256 MiB.
    assert line[table[0].index("slipform native, MiB")] == "4"
    assert line[table[0].index("open_clip, MiB")] == "256"
    assert line[-1] == "64.0"
    (largest,) = [line for line in table if line[:2] == ["16,384", "fp32"]]
    assert largest[-1] == words.NOTHING


def test_fractions_of_the_matmul_rate(results):
    fp32, bf16 = tables(render("roofline-cpu", Folder(results)))
    found = {tuple(line[:3]): line[3] for line in fp32[1:]}
    # 4 products in the time of 5; with the cache 3 in that of 4; open_clip 6 in that of 12.
    assert found["slipform native", "both", "4 U"] == "80 %"
    assert found["slipform native, cached", "both", "3 U"] == "75 %"
    assert found["open_clip", "both", "6 U"] == "50 %"
    # A quarter of the time is forward's: U in that of 1.25, and 3 U in that of 3.75.
    assert found["slipform native", "forward", "1 U"] == "80 %"
    assert found["slipform native, cached", "backward", "2 U"] == "67 %"
    # bf16 products take half of the fp32 ones' time.
    found = {tuple(line[:3]): line[3] for line in bf16[1:]}
    assert found["slipform native", "both", "4 U"] == "80 % (160 %)"
    assert not any("Liger" in line[0] for line in fp32)


def test_the_estimate_for_gpus_is_what_the_other_limits_leave(results):
    limits = {"matmul": 2.0, "memory": 1.0, "exponentials": 0.5}
    row = {"GPU": "Some GPU", "D": 256, "N": 8192}
    for pass_, bound, factor in (("forward", "matmul", 1), ("backward", "memory", 4)):
        row |= {f"{pass_}: {name}": value for name, value in limits.items()}
        row |= {f"{pass_}: memory": factor * 1.0, f"{pass_}: bound by": bound}
    bench_results.write(results, "static_roofline", [row])
    (table,) = tables(render("roofline-gpu-estimate", Folder(results)))
    assert table[1] == ["Some GPU", "256", "8,192", "100 %", "matmul", "50 %", "memory"]


def test_the_bound_is_that_of_the_same_run(results):
    rows = Folder(results).get("loss_throughput_cpu").rows
    fp32 = [row for row in rows if row.values["dtype"] == "fp32"]
    found = bound_seconds([row for row in fp32 if row.values["pass"] == "both"])
    assert found == pytest.approx({N: unit_seconds(N, 512) for N in bench_results.SIZES})


def test_accuracy_shows_the_worst_of_the_problems(results):
    (table,) = tables(render("loss-accuracy-cpu", Folder(results)))
    (line,) = [line for line in table if line[:2] == ["slipform native", "bf16"]]
    by_name = dict(zip(table[0], line, strict=True))
    assert by_name["error of the loss"] == "4e-07"
    assert by_name["of the features' gradients"] == "8e-07"
    assert by_name["passes"] == "yes"
    (line,) = [line for line in table if line[:2] == ["Liger-Kernel", "fp32"]]
    by_name = dict(zip(table[0], line, strict=True))
    assert by_name["passes"] == "**no**"
    assert by_name["scale's gradient"] == "undifferentiable"
    assert by_name["of the scale's"] == words.NOTHING
    assert by_name["hard negatives"] == "no"


def test_where_and_when_stands_below_with_the_files_own_command(results):
    text = render("loss-memory-cpu", Folder(results))
    line = "_Some CPU, 2 threads, torch 2.9.0, 2026-02-03, commit abc1234: `{}`_"
    assert line.format("python -m pytest benchmarks/test_loss_memory.py") in text
    bench_results.write(results, "loss_memory_cpu", bench_results.memory(), command="make x")
    assert line.format("make x") in render("loss-memory-cpu", Folder(results))
    # Measured on the CPU of a machine that has a GPU as well.
    bench_results.write(results, "loss_memory_cpu", bench_results.memory(), gpu="X", command="y")
    assert line.format("y") in render("loss-memory-cpu", Folder(results))


def test_where_nothing_could_run_the_reason_is_told(results):
    rows = [{**row, "not_run": REASON} for row in bench_results.throughput()]
    bench_results.write(results, "loss_throughput_cpu", rows)
    for name in ("loss-throughput-cpu", "loss-passes-cpu", "loss-speed-cpu"):
        text = render(name, Folder(results))
        assert not tables(text)
        assert f"slipform native at N = 256, 1,024, 4,096, 16,384 ({REASON})" in text
    accuracy = [{**row, "not_run": REASON} for row in bench_results.accuracy()]
    bench_results.write(results, "loss_accuracy_cpu", accuracy)
    assert not tables(render("loss-accuracy-cpu", Folder(results)))


def test_passes_that_were_not_asked_for_are_not_measured(results):
    rows = [row for row in bench_results.throughput() if row["pass"] == "both"]
    bench_results.write(results, "loss_throughput_cpu", rows)
    assert render("loss-passes-cpu", Folder(results)) == "Not yet measured."
    rows = [row for row in bench_results.throughput() if row["pass"] == "forward"]
    bench_results.write(results, "loss_throughput_cpu", rows)
    assert render("loss-speed-cpu", Folder(results)) == "Not yet measured."


@pytest.mark.parametrize("name", [name for name in BLOCKS if name.endswith("-gpu")])
def test_what_no_gpu_has_measured_is_said_so(results, name):
    assert render(name, Folder(results)) == "Not yet measured on a GPU."


def test_a_whole_step_without_a_share_and_a_miner_that_did_not_run(results):
    step = {"peer": "grad_cache", "model": "tiny", "batch": 32, "dtype": "fp32"}
    bench_results.write(results, "encoder_step_cpu", [{**step, "eager_ratio": 0.75}])
    (table,) = tables(render("encoder-step-cpu", Folder(results)))
    assert table[1] == ["GradCache", "tiny", "fp32", "32", "0.75", words.NOTHING]
    bench_results.write(results, "mining_cpu", [{"not_run": "needs captions"}])
    text = render("mining", Folder(results))
    assert text.startswith("Not run: needs captions.")
    assert not tables(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "got an empty file"),
        ("{", "got no json"),
        ("[]", "got list, expected an object"),
        ('{"rows": [{}]}', "machine: got None"),
        ('{"machine": {}, "rows": []}', "rows: got []"),
        ('{"machine": {}, "rows": [3]}', "rows[0]: got 3"),
    ],
)
def test_files_that_are_no_results_are_named(results, content, message):
    path = results / "loss_memory_cpu.json"
    path.write_text(content)
    with pytest.raises(ResultsError) as raised:
        render("loss-memory-cpu", Folder(results))
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.pop("extra_bytes"), "rows[0].extra_bytes: got nothing"),
        (lambda row: row.update(extra_bytes="many"), "rows[0].extra_bytes: got 'many'"),
        (lambda row: row.update(extra_bytes=True), "rows[0].extra_bytes: got True"),
        (lambda row: row.update(N=2.5), "rows[0].N: got 2.5, expected a whole number"),
        (lambda row: row.pop("peer"), "rows[0].peer: got nothing"),
        (lambda row: row.update(dtype=3), "rows[0].dtype: got 3, expected text"),
    ],
)
def test_a_row_that_lacks_something_is_named_with_the_key(results, change, message):
    rows = bench_results.memory()
    change(rows[0])
    bench_results.write(results, "loss_memory_cpu", rows)
    with pytest.raises(ResultsError) as raised:
        render("loss-memory-cpu", Folder(results))
    assert f"loss_memory_cpu.json: {message}" in str(raised.value)


@pytest.mark.parametrize("key", ["date", "cpu"])
def test_results_without_a_date_or_machine_are_refused(results, key):
    path = results / "loss_memory_cpu.json"
    stored = json.loads(path.read_text())
    del stored["machine"][key]
    path.write_text(json.dumps(stored))
    with pytest.raises(ResultsError, match=rf"loss_memory_cpu.json: machine.{key}: got nothing"):
        render("loss-memory-cpu", Folder(results))


def test_numbers_in_words():
    ratios = [words.ratio(x) for x in (0.567, 2.346, 12.34, 1234.4)]
    assert ratios == ["0.57", "2.35", "12.3", "1,234"]
    assert [words.mebibytes(x) for x in (2**17, 2**20, 3000 * 2**20)] == ["0.1", "1", "3,000"]
    assert [words.percent(x) for x in (0.00031, 0.0213, 0.5, 1.3)] == [
        "0.03 %", "2.1 %", "50 %", "130 %",
    ]  # fmt: skip
    assert [words.small(x) for x in (0, 3.2e-7)] == ["0", "3e-07"]
