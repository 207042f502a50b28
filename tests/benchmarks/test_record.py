"""Results files: what stands in them, and what is said of rows that a run throws away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import memory, record
from benchmarks.peers import LOSSES
from benchmarks.rows import Rows, failure


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_machine_and_rows_are_in_the_file(results):
    record.save("q_cpu", [{"N": 1, "seconds": 0.5}], packages={"b": "2", "a": "1"})
    (path,) = results.iterdir()
    found = json.loads(path.read_text())
    assert path.name == "q_cpu.json"
    assert found["rows"] == [{"N": 1, "seconds": 0.5}]
    machine = found["machine"]
    assert machine["packages"] == {"a": "1", "b": "2"}
    assert machine["torch"] == torch.__version__
    assert isinstance(machine["dirty"], bool)
    assert {"date", "cpu", "cores", "threads", "python", "slipform_kernels", "commit"} <= set(
        machine
    )


def test_rows_that_a_run_replaces_are_named(results, capsys):
    record.save("q_cpu", [{"peer": "a", "N": size, "seconds": 1.0} for size in (256, 8192)])
    assert "gone" not in capsys.readouterr().out
    record.save("q_cpu", [{"peer": "a", "N": 256, "seconds": 2.0}])
    out = capsys.readouterr().out
    assert "1 rows of the earlier q_cpu.json are gone: peer=a N=8192" in out
    assert len(json.loads((results / "q_cpu.json").read_text())["rows"]) == 1
    record.save("q_cpu", [{"peer": "a", "N": 256, "seconds": 3.0}])
    assert "gone" not in capsys.readouterr().out


def test_a_figure_that_json_does_not_know_leaves_the_file_as_it_was(results):
    record.save("q_cpu", [{"N": 1}])
    with pytest.raises(ValueError, match="JSON"):
        record.save("q_cpu", [{"N": 1, "seconds": float("nan")}])
    assert json.loads((results / "q_cpu.json").read_text())["rows"] == [{"N": 1}]


def test_a_tree_is_dirty_by_its_sources_and_not_by_results(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks"
    (folder / "results").mkdir(parents=True)
    files = [folder / "results" / "q.json", folder / "a.py", tmp_path / "b.py"]
    for file in files:
        file.write_text("1")
    monkeypatch.setattr(record, "__file__", str(folder / "record.py"))
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    commit = record.machine()["commit"]
    assert not record.machine()["dirty"]
    files[0].write_text("2")
    assert not record.machine()["dirty"]
    for file in files[1:]:
        file.write_text("2")
        assert record.machine()["dirty"]
        assert record.machine()["commit"] == f"{commit}-dirty"
        file.write_text("1")


def test_a_row_is_keyed_by_the_parameters_of_its_test():
    rows = Rows(torch.device("cpu"))
    item = SimpleNamespace(
        module=SimpleNamespace(QUESTION="question"),
        callspec=SimpleNamespace(
            params={"D": 8, "N": 64, "dtype": "fp32", "which": "both", "peer": LOSSES["torch"]}
        ),
    )
    rows.add(item, {"seconds": 1.0})
    rows.add(item, {"not_run": "why"})
    keys = {"peer": "torch", "pass": "both", "N": 64, "D": 8, "dtype": "fp32"}
    assert rows.by_question == {"question": [keys | {"seconds": 1.0}, keys | {"not_run": "why"}]}
    assert list(rows.by_question["question"][0])[:5] == list(keys)
    rows.add(SimpleNamespace(module=SimpleNamespace(QUESTION="bare")), {"captions": 3})
    assert rows.by_question["bare"] == [{"captions": 3}]
    assert rows.file("question") == "question_cpu"
    assert Rows(torch.device("cuda")).file("question") == "question_gpu"


def test_a_failure_is_its_first_line():
    assert failure(RuntimeError("out of memory\ndetails")) == "failed: RuntimeError: out of memory"
    assert failure(AssertionError()) == "failed: AssertionError"


def test_what_does_not_fit_is_left_out_with_its_size(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr(memory, "available", lambda device: 20 * 2**30)
    assert memory.lacking(16 * 2**30, cpu) is None
    assert memory.lacking(17 * 2**30, cpu) == "would need 17 GiB, of 20 GiB free"
    monkeypatch.setattr(memory, "available", lambda device: None)
    assert memory.lacking(2**60, cpu) is None


def test_the_matrix_of_a_large_batch_is_what_does_not_fit(monkeypatch):
    from benchmarks.throughput import missing

    monkeypatch.setattr(memory, "available", lambda device: 20 * 2**30)
    case = (131072, 512, torch.float32, torch.device("cpu"))
    # Five matrices of 64 GiB.
    assert missing(LOSSES["open_clip"], *case).startswith("would need 32")
    assert missing(LOSSES["torch"], *case) is None


def hungry(*, mebibytes: int):
    """A step that holds so much, for the child process below."""
    return lambda: torch.ones(mebibytes * 2**18).sum()


def test_memory_is_that_of_the_step_in_a_process_of_its_own(monkeypatch):
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    arguments = ({"mebibytes": 1}, {"mebibytes": 200})
    found = memory.added_bytes("test_record:hungry", *arguments)
    assert 195 * 2**20 < found < 230 * 2**20
    monkeypatch.setattr(memory.sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="status 1"):
        memory.added_bytes("test_record:hungry", *arguments)
