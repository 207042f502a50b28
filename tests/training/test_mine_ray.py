"""`slipform mine --engine ray`: the local engine's output, on a Ray of this machine.

Ray starts processes that load the pipeline for many seconds, so this runs only if
SLIPFORM_TEST_RAY is set.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile

import pytest

pytest.importorskip("ray")
import ray

from slipform_training import cli
from slipform_training.mining import MiningSettings, MismatchError, mine
from slipform_training.mining import ray_engine as engine

pytestmark = pytest.mark.skipif(
    not os.environ.get("SLIPFORM_TEST_RAY"), reason="SLIPFORM_TEST_RAY is not set"
)

THINGS = ("dog", "cat", "horse", "pizza", "bench", "umbrella", "boat", "kite", "banana", "clock")
COUNT = 1100
PARTS = 3


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False,
        object_store_memory=100 * 2**20, runtime_env={"env_vars": environment},
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("ray") / "c.jsonl"
    with path.open("w") as file:
        for i in range(COUNT):
            caption = "" if i % 50 == 7 else f"a {THINGS[i % 10]} near a {THINGS[i * 3 % 9]}"
            file.write(json.dumps({"caption": caption, "image": f"{i}.jpg"}) + "\n")
    return path


def test_rows_and_report_are_the_local_engines(source, tmp_path):
    for name in ("out.jsonl", "out.tsv"):
        local, cluster = (tmp_path / kind / name for kind in ("local", "ray"))
        wanted = mine(MiningSettings(inputs=(source,), out=local))
        told = []
        found = engine.mine_with_ray(
            MiningSettings(inputs=(source,), out=cluster),
            parts=PARTS,
            progress=lambda *seen, told=told: told.append(seen),
        )
        assert found.data == wanted.data
        assert cluster.read_bytes() == local.read_bytes()
        assert told[-1] == ("mine", COUNT, COUNT)
        left = {path.name for path in cluster.parent.iterdir() if path.name.startswith(name)}
        assert left == {name, f"{name}.report.json", f"{name}.inventory.json"}
        reports = [path.with_name(f"{name}.report.json").read_text() for path in (local, cluster)]
        assert reports[0] == reports[1]


def test_shards_hold_the_same_samples(source, tmp_path):
    def samples(folder):
        found = {}
        for path in folder.glob("*.tar"):
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.name.endswith(".json"):
                        row = json.loads(archive.extractfile(member).read())
                        found[row["id"]] = row
        return found

    mine(MiningSettings(inputs=(source,), out=tmp_path / "local"))
    engine.mine_with_ray(MiningSettings(inputs=(source,), out=tmp_path / "ray"), parts=PARTS)
    assert len(samples(tmp_path / "local")) == COUNT
    assert samples(tmp_path / "ray") == samples(tmp_path / "local")


def test_a_finished_part_is_not_done_again(source, tmp_path, monkeypatch):
    chosen = MiningSettings(inputs=(source,), out=tmp_path / "out.jsonl")

    class Crash(BaseException):
        pass

    def crash(*seen):
        if seen[0] == "mine":
            raise Crash

    with pytest.raises(Crash):
        engine.mine_with_ray(chosen, parts=PARTS, progress=crash)
    assert not chosen.out.exists()
    done = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "out.jsonl.parts").glob("rows.*-of-3.jsonl")
    }
    assert done
    with pytest.raises(MismatchError, match="parts = 3, this one has 4"):
        engine.mine_with_ray(chosen, parts=4)

    seen = {}

    def join(settings, each, then=engine._join):
        seen.update({path: path.stat().st_mtime_ns for path in done})
        then(settings, each)

    monkeypatch.setattr(engine, "_join", join)
    report = engine.mine_with_ray(chosen, parts=PARTS)
    assert seen == done
    mine(MiningSettings(inputs=(source,), out=tmp_path / "local.jsonl"))
    assert chosen.out.read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert engine.mine_with_ray(chosen, parts=PARTS).data == report.data


def test_errors_of_a_part_are_one_line(source, tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text(source.read_text() + "{\n")
    arguments = ["mine", str(tmp_path / "bad.jsonl"), "--out", str(tmp_path / "o.jsonl")]
    arguments += ["--engine", "ray", "--inventory-rows", "256", "--no-progress"]
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("slipform: error: part ")
    assert f"line {COUNT + 1} is not json" in error
    assert cli.main([*arguments, "--workers", "2"]) == 2
    assert "workers: got 2, expected 1 with the engine ray" in capsys.readouterr().err
