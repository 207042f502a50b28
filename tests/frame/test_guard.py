"""benchmarks/guard.py: a slowdown is caught, noise is not, and nothing is left behind."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from benchmarks import guard, guard_trees
from benchmarks import guard_decision as decision
from benchmarks.guard_trees import GuardError, Tree

ROOT = Path(__file__).resolve().parents[2]


def processes(slowdown: float, *, noise: float, seed: int, pairs: int = 3, rounds: int = 10):
    """Fake timings: every step with noise of its own, each process a little apart."""
    draw = random.Random(seed)

    def timing(ours: float) -> dict[str, float]:
        costs = {"ours": ours, "eager": 2.5, "product": 0.25}
        return {name: cost * draw.lognormvariate(0, noise) for name, cost in costs.items()}

    found = []
    for _ in range(pairs):
        lasting = draw.lognormvariate(0, noise / 3)
        found.append([(timing(lasting * slowdown), timing(1.0)) for _ in range(rounds)])
    return found


def verdict(slowdown: float, noise: float, seed: int, beside: str = "eager") -> str:
    change = decision.change_in_time(processes(slowdown, noise=noise, seed=seed), beside)
    return change.verdict(0.1)


@pytest.mark.parametrize("beside", decision.BESIDE)
def test_a_planted_slowdown_of_a_fifth_is_caught(beside):
    found = [verdict(1.2, 0.02, seed, beside) for seed in range(20)]
    assert found.count(decision.SLOWER) >= 18
    assert decision.FINE not in found


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("slowdown", [1.0, 0.8])
def test_noise_is_no_slowdown(noise, slowdown):
    assert all(verdict(slowdown, noise, seed) != decision.SLOWER for seed in range(20))


def test_a_slowdown_that_noise_may_explain_is_unclear():
    found = [verdict(1.3, 0.4, seed) for seed in range(20)]
    assert found.count(decision.UNCLEAR) >= 10


def test_what_slows_the_whole_process_cancels():
    twice = [
        [({name: 2 * value for name, value in now.items()}, then) for now, then in rounds]
        for rounds in processes(1.0, noise=0.02, seed=0)
    ]
    assert decision.change_in_time(twice, "eager").value == pytest.approx(1, abs=0.03)


def test_the_change_is_the_median_of_the_ratios_of_ratios():
    now, then = {"ours": 3.0, "eager": 4.0}, {"ours": 1.0, "eager": 2.0}
    odd = {"ours": 300.0, "eager": 4.0}
    change = decision.change_in_time([[(now, then)] * 4 + [(odd, then)]], "eager")
    assert change.value == (3 / 4) / (1 / 2)
    assert change.low == 1.5
    assert decision.cost([[(now, then)]], "eager", tree=0) == 0.75
    assert decision.cost([[(now, then)]], "eager", tree=1) == 0.5


def test_the_interval_knows_that_processes_differ():
    """Many rounds of two processes are no more than two draws of what differs between them."""
    fast = ({"ours": 1.0, "eager": 1.0}, {"ours": 1.0, "eager": 1.0})
    slow = ({"ours": 1.3, "eager": 1.0}, {"ours": 1.0, "eager": 1.0})
    change = decision.change_in_time([[fast] * 50, [slow] * 50], "eager")
    assert (change.low, change.high) == (1.0, 1.3)
    assert change.verdict(0.1) == decision.UNCLEAR


def test_memory_beyond_its_spread_is_caught():
    MiB = 2**20
    more = decision.change_in_memory([120 * MiB] * 3, [100 * MiB, 101 * MiB, 102 * MiB])
    assert more.verdict(0.1) == decision.SLOWER
    spread = decision.change_in_memory([105 * MiB, 120 * MiB, 125 * MiB], [100 * MiB] * 3)
    assert spread.verdict(0.1) == decision.UNCLEAR
    assert decision.change_in_memory([0], [0]).verdict(0.1) == decision.FINE


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@x")
    run = subprocess.run(
        ["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project of one module in two commits, with a file that git ignores."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("ignored\n")
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "guarded"\nversion = "1"\n[tool.setuptools]\npy-modules = ["guarded"]\n'
    )
    for value in ("first", "second"):
        (root / "guarded.py").write_text(f"VALUE = {value!r}\n")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", value)
    (root / "ignored").write_text("")
    return root


def left_over(root: Path) -> list[str]:
    return git(root, "worktree", "list").splitlines()[1:]


def test_the_last_release_before_the_present_tree_is_compared_with(repository):
    said: list[str] = []
    git(repository, "tag", "v0.1.0", "HEAD^")
    git(repository, "tag", "another", "HEAD")
    found = guard_trees.earlier_commit(repository, None, say=said.append)
    assert found == git(repository, "rev-parse", "v0.1.0")
    assert said == ["comparing with the last release, v0.1.0"]
    # On the release itself, with nothing changed, it is the one before.
    git(repository, "tag", "v0.2.0", "HEAD")
    assert guard_trees.earlier_commit(repository, None, say=said.append) == found
    (repository / "guarded.py").write_text("VALUE = 'changed'\n")
    found = guard_trees.earlier_commit(repository, None, say=said.append)
    assert found == git(repository, "rev-parse", "v0.2.0")


def test_without_a_release_it_is_the_last_other_commit_and_said_so(repository):
    said: list[str] = []
    found = guard_trees.earlier_commit(repository, None, say=said.append)
    assert found == git(repository, "rev-parse", "HEAD^")
    (repository / "guarded.py").write_text("VALUE = 'changed'\n")
    found = guard_trees.earlier_commit(repository, None, say=said.append)
    assert found == git(repository, "rev-parse", "HEAD")
    assert "there is no release tag (v[0-9]*) yet: comparing with HEAD^" in said[0]


def test_a_ref_that_is_none_is_named(repository, capsys):
    assert guard.main(["--against", "nonsense"], root=repository) == 2
    assert "against: got 'nonsense', expected a commit" in capsys.readouterr().err


def test_both_trees_are_built_from_their_own_sources_and_removed(repository):
    (repository / "guarded.py").write_text("VALUE = 'uncommitted'\n")
    commit = git(repository, "rev-parse", "HEAD^")
    with guard_trees.built_trees(repository, commit, say=lambda line: None) as (now, then):
        assert (now.path / "guarded.py").read_text() == "VALUE = 'uncommitted'\n"
        assert (then.path / "guarded.py").read_text() == "VALUE = 'first'\n"
        assert commit.startswith(then.name)
        assert not (now.path.parent / "present" / "ignored").exists()
        assert len(left_over(repository)) == 1
    assert not now.path.parent.exists()
    assert not left_over(repository)
    assert not (repository / "build").exists()


def test_ctrl_c_leaves_no_worktree(repository, monkeypatch, capsys):
    seen: list[Path] = []

    def interrupted(trees, arguments):
        seen.append(trees[0].path.parent)
        assert left_over(repository)
        raise KeyboardInterrupt

    monkeypatch.setattr(guard, "compare", interrupted)
    monkeypatch.setattr(guard_trees, "_install", lambda source, target, environment: None)
    assert guard.main([], root=repository) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not seen[0].exists()
    assert not left_over(repository)


def test_a_build_that_fails_is_told_and_cleaned_up(repository, capsys):
    (repository / "pyproject.toml").write_text("nonsense")
    assert guard.main([], root=repository) == 2
    error = capsys.readouterr().err
    assert error.startswith("guard: error: present: the build failed")
    assert not left_over(repository)


@pytest.mark.slow
def test_one_tree_beside_itself_from_end_to_end(capsys):
    trees = Tree("now", ROOT), Tree("then", ROOT)
    arguments = guard.parse(
        [
            *("--sizes", "32", "--dim", "16", "--dtypes", "fp32", "--threads", "1"),
            *("--rounds", "3", "--processes", "1", "--tolerance", "1000"),
        ]
    )
    assert guard.compare(trees, arguments) == 0
    shown = capsys.readouterr().out
    assert "| N = 32, fp32 | eager | " in shown
    assert "| N = 32, fp32 | memory | " in shown
    assert "0 of 3 figures are worse than in then by more than 100000%" in shown


def test_a_process_that_measures_another_package_is_refused(tmp_path):
    with pytest.raises(GuardError, match="got the package of"):
        guard.Worker(Tree("empty", tmp_path), "timings", 1)


def test_the_exit_code_follows_the_verdicts():
    trees = Tree("now", ROOT), Tree("then", ROOT)
    case = {"N": 1024, "D": 512, "dtype": "fp32"}
    memory = [(case, ([2**20] * 3, [2**20] * 3))]

    def code(slowdown: float) -> int:
        times = [processes(slowdown, noise=0.01, seed=0)]
        return guard.report(trees, [case], times, memory, 0.1)[1]

    assert code(1.0) == 0
    assert code(1.2) == 1
    larger = [(case, ([3 * 2**20] * 3, [2**20] * 3))]
    times = [processes(1.0, noise=0.01, seed=0)]
    assert guard.report(trees, [case], times, larger, 0.1)[1] == 1
