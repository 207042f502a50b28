"""benchmarks/gpu_check.sh without a GPU: stand-ins for nvidia-smi, Python and compute-sanitizer."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Notes its arguments; a line of `plan` with a part of them makes it fail, hang or take its time.
PYTHON = """#!/bin/sh
echo "$SLIPFORM_CUDA_ARCHS|$*" >>'{folder}/calls'
while IFS='|' read -r part action; do
    case "$*" in *"$part"*) eval "$action";; esac
done <'{folder}/plan'
case "$*" in *gpu_throughput*) echo '[]' >"$SLIPFORM_RESULTS/gpu_throughput_bf16.json";; esac
"""
SMI = """#!/bin/sh
case "$*" in *compute_cap*) echo "{capability}";; *) echo "A card, 570.1, 81559 MiB";; esac
"""


class Machine:
    """A PATH and a plan of what goes wrong."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "bin").mkdir()
        self.script("bin/python", PYTHON.format(folder=folder))
        self.script("bin/nvidia-smi", SMI.format(capability="9.0"))
        self.plan = ""

    def script(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def sanitizer(self) -> None:
        self.script("bin/compute-sanitizer", '#!/bin/sh\nwhile [ "$1" != -m ]; do shift; done\n')

    def check(self, seconds: int = 60) -> subprocess.CompletedProcess[str]:
        (self.folder / "plan").write_text(self.plan)
        environment = os.environ | {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "PYTHON": f"{self.folder}/bin/python",
            "GPU_CHECK_SECONDS": str(seconds),
        }
        return subprocess.run(
            [ROOT / "benchmarks" / "gpu_check.sh", str(self.folder / "results")],
            env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_all_steps_in_order_and_the_summary_last(machine):
    machine.sanitizer()
    run = machine.check()
    assert run.returncode == 0, run.stdout + run.stderr
    build, primitives, tests, benchmark = machine.calls
    assert build == "90|setup.py -q build_ext --inplace"
    assert primitives.endswith("tests/gpu/test_primitives.py")
    assert "--ignore=tests/gpu/test_primitives.py" in tests
    assert "benchmarks.gpu_throughput --seconds" in benchmark
    assert (machine.folder / "results" / "gpu_throughput_bf16.json").exists()
    summary = run.stdout[run.stdout.index("== summary") :].splitlines()[1:]
    names = [line.partition(":")[0] for line in summary]
    assert names == ["build", "primitives", "tests", "memcheck", "racecheck", "benchmark"]
    assert all("passed in" in line for line in summary)
    assert "A card" in run.stdout


def test_a_failing_step_is_named_and_the_rest_runs(machine):
    machine.plan = "--ignore|exit 3\n"
    run = machine.check()
    assert run.returncode == 1
    assert "tests: FAILED with status 3" in run.stdout
    assert "benchmark: passed" in run.stdout
    assert "memcheck, racecheck: left out, no compute-sanitizer" in run.stdout


def test_a_hanging_step_is_stopped_within_the_budget(machine):
    machine.plan = "test_primitives.py|sleep 100\n"
    start = time.monotonic()
    run = machine.check(seconds=14)
    assert time.monotonic() - start < 30
    assert run.returncode == 1
    assert "primitives: STOPPED after" in run.stdout
    assert "benchmark: left out, no time" in run.stdout


def test_without_a_gpu_it_stops_at_once(machine):
    machine.script("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
    run = machine.check()
    assert run.returncode == 2
    assert "no GPU" in run.stderr
    assert not (machine.folder / "calls").exists()
