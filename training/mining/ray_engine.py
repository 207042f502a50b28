"""Mining on a Ray cluster: parts of the input as tasks, and their outputs put together.

A part is that of `slipform mine --shard i/n`, so that its rows are the same wherever it is done. It
is written and resumed by itself, on a file system that all machines share.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from slipform_training.mining.files import locked, read_json, replacing, write_json
from slipform_training.mining.report import Report
from slipform_training.mining.resume import MismatchError, Progress
from slipform_training.mining.run import Run, mine
from slipform_training.mining.settings import MiningSettings
from slipform_training.mining.tagging import BLOCK
from slipform_training.mining.writers import tsv_line


def mine_with_ray(
    settings: MiningSettings,
    *,
    parts: int,
    fresh: bool = False,
    progress: Progress = lambda name, done, total: None,
) -> Report:
    """As `mine`, with the same output and report, by tasks of Ray Data of one CPU each.

    Ray's cluster is that which this process is connected to, else that of RAY_ADDRESS, else one
    that is started on this machine and ended afterwards. A finished part is never done again.

    Args:
        settings: what to do, all of it: no shard.
        parts: tasks.
        fresh: forget an earlier run, and replace its output.
        progress: called after each part.

    Raises:
        RuntimeError: ray is missing, or what a part raises, with its message.
        ValueError, OSError: as `mine`; parts out of range.
    """
    if parts < 1:
        raise ValueError(f"ray_parts: got {parts}, expected at least 1")
    if settings.part:
        raise ValueError(f"shard: got {settings.shard}, expected all with the engine ray")
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    with locked(settings.beside("lock")):
        return _mine(settings, parts, fresh, progress)


def _mine(settings: MiningSettings, parts: int, fresh: bool, progress: Progress) -> Report:
    run, folder = Run(settings, 1, progress), settings.beside("parts")
    if fresh:
        run.forget()
        shutil.rmtree(folder, ignore_errors=True)
        _remove_shards(settings)
    # Where there are parts, what is in the output's place may be theirs already.
    elif not folder.exists() and (finished := run.finished(fresh=False)) is not None:
        return finished
    folder.mkdir(exist_ok=True)
    _check(folder / "request.json", {"parts": parts, **settings.request()})
    own = replace(settings, out=folder / f"rows{settings.out_file.suffix}")
    if settings.rewriter == "corpus":
        run.inventory()
        own = replace(own, inventory=settings.inventory_file)
    each = [replace(own, out_format=settings.format, shard=(i, parts)) for i in range(parts)]
    report = Report()
    with _cluster():
        for number, part in enumerate(_reports(each), start=1):
            report.join(part)
            progress("mine", report.rows, report.rows * parts // number)
    _join(settings, each)
    run.finish(report)
    shutil.rmtree(folder)
    return report


def _check(where: Path, asked: dict[str, Any]) -> None:
    earlier = read_json(where)
    if earlier is None:
        write_json(where, asked)
        return
    for name in sorted(asked.keys() | earlier.keys()):
        if earlier.get(name) != asked.get(name):
            raise MismatchError(
                f"{where}: the earlier run had {name} = {earlier.get(name)!r}, this one has "
                f"{asked.get(name)!r}; name another output, or use --fresh"
            )


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    import ray

    if ray.is_initialized():
        yield
        return
    ray.init(include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _reports(each: Sequence[MiningSettings]) -> Iterator[Report]:
    """The parts' reports, as they are done."""
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    here = os.getcwd()
    numbers = [{"part": number} for number in range(len(each))]
    rows = ray.data.from_items(numbers, override_num_blocks=len(each))
    held = ray.put(list(each))

    def mine_part(row: dict[str, Any]) -> dict[str, Any]:
        os.chdir(here)  # for paths that are relative
        try:
            found = mine(ray.get(held)[row["part"]])
        except (OSError, ValueError, RuntimeError) as error:
            return {"part": row["part"], "report": "", "error": str(error)}
        return {"part": row["part"], "report": json.dumps(found.data), "error": ""}

    for done in rows.map(mine_part).iter_rows():
        if done["error"]:
            raise RuntimeError(f"part {done['part']}: {done['error']}")
        yield Report(json.loads(done["report"]))


def _join(settings: MiningSettings, each: Sequence[MiningSettings]) -> None:
    """Gives the output its place: part i has the blocks i, i + n, ... of the rows."""
    if settings.format == "shards":
        settings.out.mkdir(exist_ok=True)
        for path in sorted(each[0].out.glob("*.tar")):
            os.replace(path, settings.out / path.name)
        return
    is_tsv = settings.format == "tsv"
    with contextlib.ExitStack() as files, replacing(settings.out) as out:
        sources = [_records(part.out_file, is_tsv, files) for part in each]
        if is_tsv:
            headers = [next(source) for source in sources]
            out.write(headers[0])
        while blocks := [block for source in sources if (block := list(islice(source, BLOCK)))]:
            for block in blocks:
                out.writelines(block)


def _remove_shards(settings: MiningSettings) -> None:
    if settings.format == "shards" and settings.out.is_dir():
        for path in settings.out.iterdir():
            if re.fullmatch(r"(\d+-of-\d+-)?\d{6}\.tar", path.name):
                path.unlink()


def _records(path: Path, is_tsv: bool, files: contextlib.ExitStack) -> Iterator[bytes]:
    if not is_tsv:
        return iter(files.enter_context(path.open("rb")))
    text = files.enter_context(path.open(encoding="utf-8", newline=""))
    return (tsv_line(cells) for cells in csv.reader(text, delimiter="\t"))
