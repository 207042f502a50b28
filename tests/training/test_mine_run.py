"""A mining run: the report, parts and workers, and what is left after a crash at any moment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from slipform_training import cli
from slipform_training.concreteplant.anchors import find_candidates, load_pipeline
from slipform_training.concreteplant.lexicon import load_lexicon
from slipform_training.concreteplant.llm import LlmOptions
from slipform_training.mining import MiningSettings, MismatchError, Tagger, mine
from slipform_training.mining import files as mining_files
from slipform_training.mining import resume as mining_resume
from slipform_training.mining import run as mining_run
from slipform_training.mining import tagging as mining_tagging
from support.chat_server import Server, change
from support.write_stops import Crash, WriteStops

THINGS = ("dog", "cat", "horse", "pizza", "bench", "umbrella", "boat", "kite", "banana", "clock")
PLACES = ("beach", "table", "road", "bed", "field", "sofa")


def captions(count):
    for i in range(count):
        if i % 17 == 5:
            yield "" if i % 2 else "it is what it is"
        else:
            yield f"a {THINGS[i % 10]} on a {PLACES[i * 7 % 6]} near a {THINGS[i * 3 % 9]}"


def write_captions(path, count=60):
    lines = (json.dumps({"caption": c, "image": f"{i}.jpg"}) for i, c in enumerate(captions(count)))
    path.write_text("".join(line + "\n" for line in lines))
    return path


@dataclass(frozen=True)
class CachingTagger(Tagger):
    """The real pipeline, asked once for each text."""

    def tag(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in _CACHE]
        found = find_candidates(new, lexicon=load_lexicon(), nlp=load_pipeline())
        _CACHE.update(zip(new, found, strict=True))
        return [_CACHE[text] for text in texts]


_CACHE: dict = {}


@pytest.fixture
def small_blocks(monkeypatch):
    for module in (mining_run, mining_tagging):
        monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(mining_resume, "COMMIT_SECONDS", 0.0)


def settings(source, out, **more):
    return MiningSettings(inputs=(source,), out=out, tagger=CachingTagger(), **more)


def outputs(folder):
    """All files of a folder, without those that tell of the run's own name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def mined_rows(path):
    return [json.loads(line) for line in path.open(encoding="utf-8")]


class TestResults:
    def test_rows_follow_the_contract(self, tmp_path):
        source = write_captions(tmp_path / "c.jsonl")
        report = mine(settings(source, tmp_path / "out.jsonl"))
        rows = mined_rows(tmp_path / "out.jsonl")
        assert [row["caption"] for row in rows] == list(captions(60))
        assert [row["image"] for row in rows] == [f"{i}.jpg" for i in range(60)]
        assert [row["id"] for row in rows] == [f"c.jsonl:{i}" for i in range(60)]
        for row in rows:
            lists = [row[name] for name in ("hard_captions", "replaced", "replacement", "edit")]
            lists += [row["concreteness"], row["rewriter"]]
            assert {len(values) for values in lists} == ({0} if "reason" in row else {1})
            for hard, old, new in zip(*lists[:3], strict=True):
                assert old in row["caption"].split()
                assert new not in row["caption"].split()
                assert (
                    hard.replace("an ", "a ")
                    == row["caption"].replace(old, new, 1).replace("an ", "a ")
                    or row["caption"].count(old) > 1
                )
        assert report.rows == 60
        assert report.mined == sum(bool(row["hard_captions"]) for row in rows)

    def test_the_report_counts_everything(self, tmp_path):
        source = write_captions(tmp_path / "c.jsonl")
        report = mine(settings(source, tmp_path / "out.jsonl"))
        rows = mined_rows(tmp_path / "out.jsonl")
        reasons = Counter(row["reason"] for row in rows if "reason" in row)
        assert reasons["empty caption"] == 2
        assert dict(report.without) == dict(reasons)
        assert (
            sum(report.concreteness.values()) == report.hard_captions == sum(report.edits.values())
        )
        written = json.loads((tmp_path / "out.jsonl.report.json").read_text())
        assert written["rows"] == 60
        assert written["mined"] == report.mined
        assert written["without"] == dict(reasons)
        assert f"rows: {60}\nmined: {report.mined}" in report.text()
        assert f"without, empty caption: {reasons['empty caption']}" in report.text()

    def test_several_hard_captions_change_different_words(self, tmp_path):
        source = write_captions(tmp_path / "c.jsonl")
        mine(settings(source, tmp_path / "out.jsonl", hard=2))
        rows = [row for row in mined_rows(tmp_path / "out.jsonl") if row["hard_captions"]]
        assert any(len(row["hard_captions"]) == 2 for row in rows)
        for row in rows:
            assert len(set(row["replaced"])) == len(row["replaced"])

    def test_the_papers_example(self, tmp_path):
        paper = "a plate of pasta with some chicken and broccoli mixed in with it"
        others = ("a bowl of rice", "a salad with some beef", "a soup with tuna and beans")
        source = tmp_path / "c.jsonl"
        lines = [{"caption": c} for c in (paper, *others)]
        lines += [{"caption": paper, "id": f"paper {i}"} for i in range(60)]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        mine(settings(source, tmp_path / "out.jsonl"))
        rows = [r for r in mined_rows(tmp_path / "out.jsonl") if r["caption"] == paper]
        found = {(row["replaced"][0], row["concreteness"][0]) for row in rows if row["replaced"]}
        assert found == {("chicken", 4.8), ("broccoli", 4.87), ("pasta", 4.86)}

    def test_a_language_model_is_asked(self, tmp_path, small_blocks, monkeypatch):
        monkeypatch.setenv("SLIPFORM_LLM_KEY", "sk-secret")
        source = write_captions(tmp_path / "c.jsonl", 30)
        server = Server(lambda body, n: "no" if n % 5 == 0 else change(body, word="robot"))
        try:
            options = LlmOptions(url=server.url, model="m", attempts=1)
            out = tmp_path / "out.jsonl"
            report = mine(settings(source, out, rewriter="llm", llm=options))
        finally:
            server.close()
        rejected = len(server.requests) // 5
        assert report.without["the model's answers changed more than the word"] == rejected
        assert report.notes == {
            "llm requests": len(server.requests),
            "llm answers rejected": rejected,
        }
        rows = mined_rows(out)
        assert len(rows) == 30
        assert sum(row["replacement"] == ["robot"] for row in rows) == report.mined > 15
        assert {row["rewriter"][0] for row in rows if row["rewriter"]} == {"llm"}
        assert not any(b"sk-secret" in content for content in outputs(tmp_path).values())


class TestPartsAndWorkers:
    @pytest.mark.parametrize("parts", [1, 2, 5])
    def test_parts_together_are_the_whole(self, tmp_path, parts, small_blocks):
        source = write_captions(tmp_path / "c.jsonl")
        mine(settings(source, tmp_path / "whole.jsonl"))
        found = []
        for i in range(parts):
            mine(settings(source, tmp_path / "out.jsonl", shard=(i, parts)))
            name = f"out.{i}-of-{parts}.jsonl" if parts > 1 else "out.jsonl"
            found += mined_rows(tmp_path / name)
        whole = mined_rows(tmp_path / "whole.jsonl")
        assert sorted(map(str, found)) == sorted(map(str, whole))

    def test_an_inventory_serves_other_corpora(self, tmp_path, small_blocks):
        source = write_captions(tmp_path / "c.jsonl")
        words = tmp_path / "words.json"
        mine(settings(source, tmp_path / "a.jsonl", inventory=words))
        before = words.read_bytes()
        one = tmp_path / "one.jsonl"
        one.write_text('{"caption": "a dog on a sofa near a lamp", "id": "x"}\n')
        report = mine(settings(one, tmp_path / "b.jsonl", inventory=words))
        assert report.mined == 1
        assert words.read_bytes() == before

    def test_the_inventory_may_be_of_the_first_rows(self, tmp_path, small_blocks):
        source = write_captions(tmp_path / "c.jsonl")
        report = mine(settings(source, tmp_path / "out.jsonl", inventory_rows=16))
        assert report.rows == 60
        inventory = json.loads((tmp_path / "out.jsonl.inventory.json").read_text())
        assert inventory["captions"] == 16

    def test_parts_of_shards_share_a_folder(self, tmp_path, small_blocks):
        source = write_captions(tmp_path / "c.jsonl")
        found = []
        for i in range(2):
            chosen = settings(source, tmp_path / "out", shard=(i, 2))
            mine(chosen)
            found += chosen.mined_files()
        assert sorted(found) == sorted((tmp_path / "out").glob("*.tar"))
        whole = settings(source, tmp_path / "out")
        assert whole.mined_files() == []
        mine(whole)
        assert whole.mined_files() == [tmp_path / "out/000000.tar"]
        (tmp_path / "out.report.json").unlink()
        with pytest.raises(MismatchError, match="is there, but not its report"):
            mine(whole)

    @pytest.mark.slow
    def test_workers_give_the_same_bytes(self, tmp_path, monkeypatch):
        monkeypatch.setattr(mining_run, "PAYING_BLOCKS", 2)
        source = write_captions(tmp_path / "c.jsonl", 700)
        for workers in (1, 2):
            out = tmp_path / f"{workers}.jsonl"
            chosen = MiningSettings(inputs=(source,), out=out)
            assert mine(chosen, workers=workers).workers == workers
        assert (tmp_path / "1.jsonl").read_bytes() == (tmp_path / "2.jsonl").read_bytes()

    def test_few_captions_start_no_workers(self, tmp_path, capsys):
        source = write_captions(tmp_path / "c.jsonl")
        arguments = ["mine", str(source), "--out", str(tmp_path / "o.jsonl"), "--no-progress"]
        assert cli.main([*arguments, "--workers", "3"]) == 0
        assert "workers: 1 of 3, as there was too little to do" in capsys.readouterr().out

    @pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
    def test_progress_knows_its_total_about(self, tmp_path, small_blocks, shard):
        source = write_captions(tmp_path / "c.jsonl", 2000)
        told = []
        chosen = settings(source, tmp_path / "out.jsonl", shard=shard, inventory_rows=400)
        report = mine(chosen, progress=lambda *seen: told.append(seen))
        passes = {name: [seen[1:] for seen in told if seen[0] == name] for name, *_ in told}
        assert list(passes) == ["inventory", "mine"]
        assert passes["inventory"][-1] == (400, 400)
        assert passes["mine"][-1] == (report.rows, pytest.approx(report.rows, abs=8))
        assert abs(report.rows - 2000 / shard[1]) <= 8
        for done, total in passes["mine"]:
            assert done <= total
            # Some KiB of the file are read ahead, so the first estimates are low.
            assert done < 800 / shard[1] or abs(total - 2000 / shard[1]) < 400 / shard[1]


OUT = {"jsonl": "out.jsonl", "tsv": "out.tsv", "shards": "out"}


class TestCrashes:
    @pytest.mark.parametrize("kind", ["jsonl", "tsv", "shards"])
    def test_any_step_may_be_the_last(self, tmp_path, kind, small_blocks, monkeypatch):
        """Stops at each write to disk in turn, once before and once after it took effect."""
        source = write_captions(tmp_path / "c.jsonl", 36)
        options = {"shard_rows": 16}
        whole = tmp_path / "whole"
        whole.mkdir()
        mine(settings(source, whole / OUT[kind], **options))
        expected = outputs(whole)
        stops = WriteStops(monkeypatch)
        crashes = 0
        for step in range(1, 200):
            for after in (False, True):
                folder = tmp_path / f"{step}-{after}"
                folder.mkdir()
                chosen = settings(source, folder / OUT[kind], **options)
                crashes += stops.stops(partial(mine, chosen), step=step, after=after)
                mine(chosen)
                found = {n: b for n, b in outputs(folder).items() if not n.endswith(".tmp")}
                assert found.keys() == expected.keys()
                assert found == expected
            if stops.count < step:
                break
        assert crashes > 30

    def test_what_was_written_after_the_last_commit_is_dropped(self, tmp_path, small_blocks):
        source = write_captions(tmp_path / "c.jsonl")
        chosen = settings(source, tmp_path / "out.jsonl")
        mine(settings(source, tmp_path / "whole.jsonl"))

        def stop(name, done, total, seen=[]):  # noqa: B006
            seen.append(name)
            if seen.count("mine") == 3:
                raise Crash

        with pytest.raises(Crash):
            mine(chosen, progress=stop)
        assert not (tmp_path / "out.jsonl").exists()
        with (tmp_path / "out.jsonl.partial").open("ab") as file:
            file.write(b'{"half a row')
        with (tmp_path / "out.jsonl.tagged.jsonl").open("ab") as file:
            file.write(b"[[[")
        mine(chosen)
        assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()

    @pytest.mark.slow
    def test_a_killed_process_goes_on(self, tmp_path):
        source = write_captions(tmp_path / "c.jsonl", 2600)
        script = "import sys; from slipform_training.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", script, "mine", str(source), "--no-progress", "--out"]
        subprocess.run([*command, str(tmp_path / "whole.jsonl")], check=True, capture_output=True)
        out = tmp_path / "out.jsonl"
        watched = [tmp_path / f"out.jsonl.{name}" for name in ("tagged.jsonl", "state.json")]
        for path, wanted in ((watched[0], 2), (watched[0], 5), (watched[0], 9)):
            process = subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL)
            end = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < end:
                if _progress(path) >= wanted:
                    break
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.wait()
        subprocess.run([*command, str(out)], check=True, capture_output=True)
        assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
        left = {path.name for path in tmp_path.iterdir() if path.name.startswith("out")}
        assert left == {"out.jsonl", "out.jsonl.inventory.json", "out.jsonl.report.json"}


def _progress(path):
    if not path.exists():
        return 0
    content = path.read_bytes()
    return json.loads(content)["blocks"] if path.suffix == ".json" else content.count(b"\n")


class TestMistakes:
    def test_a_finished_run_is_not_done_again(self, tmp_path, small_blocks):
        source = write_captions(tmp_path / "c.jsonl")
        chosen = settings(source, tmp_path / "out.jsonl")
        first = mine(chosen)
        before = (tmp_path / "out.jsonl").stat().st_mtime_ns
        assert mine(chosen).data == first.data
        assert (tmp_path / "out.jsonl").stat().st_mtime_ns == before

    def test_other_settings_are_refused_by_name(self, tmp_path, small_blocks):
        source = write_captions(tmp_path / "c.jsonl")
        mine(settings(source, tmp_path / "out.jsonl"))
        with pytest.raises(MismatchError, match="the earlier run had seed = 0, this one has 1"):
            mine(settings(source, tmp_path / "out.jsonl", seed=1))
        mine(settings(source, tmp_path / "out.jsonl", seed=1), fresh=True)

    @pytest.mark.parametrize("out", ["out.jsonl", "out"])
    def test_other_peoples_files_are_left_alone(self, tmp_path, out):
        source = write_captions(tmp_path / "c.jsonl")
        path = tmp_path / out
        if out == "out":
            path.mkdir()
            path = path / "000000.tar"
        path.write_text("mine")
        with pytest.raises(MismatchError, match="is there, but not its report"):
            mine(settings(source, tmp_path / out))
        assert path.read_text() == "mine"

    def test_the_input_is_no_output(self, tmp_path):
        source = write_captions(tmp_path / "c.jsonl")
        with pytest.raises(ValueError, match=r"out: got .*c.jsonl, where the input"):
            settings(source, source)
        with pytest.raises(ValueError, match="where the input"):
            settings(source, tmp_path, out_format="shards")

    def test_two_processes_do_not_write_one_output(self, tmp_path):
        source = write_captions(tmp_path / "c.jsonl")
        chosen = settings(source, tmp_path / "out.jsonl")
        with (
            mining_files.locked(chosen.beside("lock")),
            pytest.raises(ValueError, match="another process is at work on this output"),
        ):
            mine(chosen)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"hard": 0}, "hard: got 0"),
            ({"shard": (2, 2)}, "shard: got 2/2, expected i/n with 0 <= i < n"),
            ({"rewriter": "magic"}, "rewriter: got 'magic'"),
            ({"rewriter": "wordnet"}, "wordnet: got no folder"),
            ({"rewriter": "llm"}, "llm_url: got none"),
            ({"min_concreteness": 0.0}, "min_concreteness: got 0.0"),
            ({"out": Path("x.txt")}, "out_format: got 'unknown, from the name x.txt'"),
            ({"inputs": ()}, "inputs: got none"),
        ],
    )
    def test_settings_are_checked(self, options, message):
        with pytest.raises(ValueError, match=message):
            MiningSettings(**{"inputs": (Path("c.jsonl"),), "out": Path("x.jsonl"), **options})

    def test_the_command_ends_with_one_line(self, tmp_path, capsys):
        out = str(tmp_path / "out.jsonl")
        assert cli.main(["mine", str(tmp_path / "gone.jsonl"), "--out", out]) == 2
        error = capsys.readouterr().err
        assert error.startswith("slipform: error: ")
        assert "gone.jsonl" in error
        assert error.count("\n") == 1
        source = write_captions(tmp_path / "c.jsonl")
        assert cli.main(["mine", str(source), "--out", out, "--no-progress"]) == 0
        printed = capsys.readouterr().out
        assert "rows: 60" in printed
        assert "concreteness of the replaced words:" in printed
