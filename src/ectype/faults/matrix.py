"""Make the runs of a fault matrix, several at a time, and put them together. What is done already is kept."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ectype.artifacts import lock, write_bytes_atomic, write_json
from ectype.errors import EXIT_BAD_INPUT, EctypeError
from ectype.evaluate.held_out import load_held_out
from ectype.faults.record import FaultMatrix, RegimeRecord, Row, Seconds, write_matrix
from ectype.faults.regimes import (
    DETAILS,
    RECIPE,
    Details,
    Regime,
    Run,
    regime_named,
    regime_recipe,
    stages,
)
from ectype.faults.table import text_lines
from ectype.progress import Progress, silent
from ectype.recipe.parse import read_record
from ectype.recipe.reference import named_reference
from ectype.train.run_folder import environment

TABLES = "faults.md"
"""The matrix as Markdown, beside its record."""
_WALL = "wall-seconds.json"
_TAIL_LINES = 12
_ANEW = "delete it and call `ectype faults` again"


def fault_matrix(out: Path, chosen: Details, jobs: int, progress: Progress = silent) -> FaultMatrix:
    """Make the matrix in `out`, or go on with one that was stopped there.

    Args:
        out: holds a folder for each regime with what came of each run, and in the end `faults.json` and `faults.md`.
        chosen: regimes, faults and honest runs.
        jobs: runs at a time.

    Raises:
        EctypeError: `out` holds another matrix, another call works there, or a run failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    busy = EctypeError(
        f"another call makes the matrix in {out}", "one at a time", "wait for it, or name another folder"
    )
    with lock(out / ".lock", busy):
        _require_same(out, chosen)
        began, before = time.monotonic(), _wall_seconds(out)
        runs = [run for stage in stages(chosen) for run in stage]
        try:
            for stage in stages(chosen):
                _make(out, [run for run in stage if not run.done(out).is_file()], jobs, runs, progress)
        finally:
            wall = Seconds(seconds=before + time.monotonic() - began)
            write_json(out / _WALL, wall.model_dump(mode="json"))
        matrix = _joined(out, chosen, jobs)
        write_matrix(out, matrix)
        write_bytes_atomic(out / TABLES, "\n".join([*text_lines(matrix), ""]).encode())
    return matrix


def _require_same(out: Path, chosen: Details) -> None:
    """Rows of another recipe, or made by another version, do not stand beside those of today."""
    path = out / DETAILS
    if path.is_file():
        known = read_record(path, Details, "details of a fault matrix", "ectype faults", "name another folder")
        hashes = {name: known.recipe_hashes[name] for name in chosen.recipe_hashes if name in known.recipe_hashes}
        if (known.overrides, known.ectype) != (chosen.overrides, chosen.ectype) or hashes != {
            name: chosen.recipe_hashes[name] for name in hashes
        }:
            raise EctypeError(
                f"{out} holds runs of Ectype {known.ectype} and {RECIPE} with {list(known.overrides) or 'nothing'} "
                f"changed, by hash {_shown(known.recipe_hashes)}",
                f"Ectype {chosen.ectype}, {list(chosen.overrides) or 'nothing'} and {_shown(chosen.recipe_hashes)}",
                "name another folder",
            )
        chosen = chosen.model_copy(update={"recipe_hashes": known.recipe_hashes | chosen.recipe_hashes})
    write_json(path, chosen.model_dump(mode="json"))


def _shown(hashes: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value[:12]}" for name, value in hashes.items())


def _wall_seconds(out: Path) -> float:
    path = out / _WALL
    return _seconds(path) if path.is_file() else 0.0


def _seconds(path: Path) -> float:
    return read_record(path, Seconds, "time of a fault matrix", "ectype faults", _ANEW).seconds


def _make(out: Path, wanted: list[Run], jobs: int, runs: list[Run], progress: Progress) -> None:
    """All `wanted` runs, `jobs` at a time. Unless this process is killed, none of theirs is left behind."""
    started: set[subprocess.Popen[Any]] = set()
    stopped = threading.Event()

    def make(run: Run) -> Run:
        run.folder(out).parent.mkdir(parents=True, exist_ok=True)
        log = run.folder(out).with_suffix(".log")
        if stopped.is_set():
            return run
        with log.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "ectype.faults", str(out), run.name], stdout=stream, stderr=stream,
                stdin=subprocess.DEVNULL, env=_environment(out), start_new_session=True,
            )  # fmt: skip
            started.add(process)
            code = process.wait()
        if code and not stopped.is_set():
            raise _failed(run, code, log)
        return run

    done = sum(run.done(out).is_file() for run in runs)
    progress("runs", done, len(runs))
    failures: list[EctypeError] = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in as_completed([pool.submit(make, run) for run in wanted]):
                try:
                    future.result()
                except EctypeError as error:
                    failures.append(error)  # The others need nothing of it.
                    continue
                done += 1
                progress("runs", done, len(runs))
        finally:
            stopped.set()
            for process in started:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
    if failures:
        raise failures[0]


def _environment(out: Path) -> dict[str, str]:
    """Compiled programs are shared; a faulty program has a text of its own, and so is never taken for a sound one."""
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str((out / "programs").absolute()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    }


def _failed(run: Run, code: int, log: Path) -> EctypeError:
    tail = log.read_text(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    shown = "\n    ".join(tail) or "nothing"
    why = "an error of its input" if code == EXIT_BAD_INPUT else f"exit code {code}"
    return EctypeError(
        f"run {run.name} ended with {why}; its log {log} ends with\n    {shown}", "a run that ends well",
        "mend what it names and call again: finished runs are kept",
    )  # fmt: skip


def _joined(out: Path, chosen: Details, jobs: int) -> FaultMatrix:
    regimes = [regime_named(name) for name in chosen.regimes]
    recipe = regime_recipe(chosen, regimes[0])
    joined = tuple(_regime(out, chosen, regime) for regime in regimes)
    others = [run for stage in stages(chosen)[:-1] for run in stage]
    rows = [row for regime in joined for row in (*regime.faults, *regime.honest)]
    text = load_held_out(named_reference(recipe), recipe.data.sequence_length_tokens, recipe.model.vocab_size)
    return FaultMatrix(
        recipe=RECIPE,
        overrides=chosen.overrides,
        held_out_tokens=text.targets or 0,
        regimes=joined,
        environment=environment(),
        cores=len(os.sched_getaffinity(0)),
        jobs=jobs,
        run_seconds=sum(row.seconds for row in rows) + sum(_seconds(run.done(out)) for run in others),
        wall_seconds=_wall_seconds(out),
    )  # fmt: skip


def _regime(out: Path, chosen: Details, regime: Regime) -> RegimeRecord:
    recipe = regime_recipe(chosen, regime)

    def rows(kind: str) -> tuple[Row, ...]:
        found = [run for run in stages(chosen)[-1] if run.kind == kind and run.regime == regime.name]
        return tuple(read_record(run.done(out), Row, "run of a fault matrix", "ectype faults", _ANEW) for run in found)

    return RegimeRecord(
        name=regime.name, what=regime.what, duration_steps=recipe.duration_steps, landmarks=recipe.landmarks,
        twins=regime.twins, faults=rows("fault"), honest=rows("honest"),
    )  # fmt: skip
