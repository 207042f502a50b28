"""Benchmarks under pytest: `python -m pytest benchmarks/test_loss_throughput.py --sizes 256 8192`.

They are no tests of correctness, and `make test` does not collect them. Each test makes one row of
results/<QUESTION>_<cpu|gpu>.json, keyed by its parameters. What is skipped or fails is a row too,
with the reason as `not_run`. At the end of a run that was not interrupted, the file of each
question of which something was measured is replaced whole, since its rows are of one machine and
one commit; rows of earlier runs that go with it are named on the terminal. SLIPFORM_RESULTS names
another folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from benchmarks import options, record, rows
from benchmarks.options import Options

OPTIONS = pytest.StashKey[Options]()
ROWS = pytest.StashKey[rows.Rows]()
START = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("benchmarks of slipform-kernels")
    for name, arguments in options.OPTIONS.items():
        group.addoption(name, **arguments)


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            'pytest-benchmark is missing: pip install "slipform-kernels[bench]"'
        )
    if config.getoption("benchmark_disable") or config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "-n, --benchmark-disable: got one, expected none: rows are measured one at a time"
        )
    try:
        config.stash[OPTIONS] = Options.of(config.getoption)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[ROWS] = rows.Rows(config.stash[OPTIONS].device)
    config.stash[START] = time.monotonic()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each parameter's values: the option's, or the constant of the test file."""
    for name, (option, constant) in rows.PARAMETERS.items():
        if name not in metafunc.fixturenames or not hasattr(metafunc.module, constant):
            continue
        known = getattr(metafunc.module, constant)
        asked = metafunc.config.getoption(option)
        if isinstance(known, dict):  # of peers, by name; another file's are none of this one's
            values = [known[key] for key in asked or known if key in known]
        else:
            values = asked or known
        names = [getattr(value, "name", str(value)) for value in values]
        metafunc.parametrize(name, values, ids=names)


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Options:
    return pytestconfig.stash[OPTIONS]


@pytest.fixture(autouse=True)
def _alike(settings: Options, pytestconfig: pytest.Config) -> Iterator[None]:
    """Threads and seed as asked for; nothing starts after --seconds."""
    limit = settings.seconds
    if limit is not None and time.monotonic() - pytestconfig.stash[START] > limit:
        pytest.skip(f"left out after {limit:g} s")
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def save_row(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Callable[..., None]:
    """Keeps what was measured, with the test's parameters as keys."""

    def save(**measured: Any) -> None:
        pytestconfig.stash[ROWS].add(request.node, measured)

    return save


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A row for what was skipped or failed."""
    report = yield
    if report.skipped:
        # (file, line, "Skipped: reason")
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith("got empty parameter set"):  # of --peers of other files
            item.config.stash[ROWS].add(item, {"not_run": reason})
    elif report.failed and call.excinfo is not None:
        item.config.stash[ROWS].add(item, {"not_run": rows.failure(call.excinfo.value)})
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    found = config.stash[ROWS]
    if exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
        terminalreporter.write_line("interrupted: no result is written")
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(config.stash[OPTIONS].threads)  # what is recorded
    for question, measured in found.by_question.items():
        terminalreporter.section(question)
        if all("not_run" in row for row in measured):
            print(record.table(measured))
            print(f"nothing was measured: {found.file(question)}.json is left as it is")
        else:
            record.save(found.file(question), measured, packages=found.packages[question])
    torch.set_num_threads(threads)
