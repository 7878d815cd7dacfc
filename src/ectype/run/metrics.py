"""`metrics.jsonl`: one JSON line per update, appended by one process, read back by step."""

import json
import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ectype.artifacts import parse_json, write_bytes_atomic
from ectype.errors import EctypeError
from ectype.recipe.reference import TrainingLog
from ectype.run.paths import RunFolder

Row = dict[str, Any]
_BLOCK_BYTES = 1 << 18


class MetricsFile:
    """Appends rows in order. Lines after the resumed step, and one that a crash tore, are cut at opening."""

    def __init__(self, run_dir: Path, first_step: int, *, writes: bool) -> None:
        """Open the file of `run_dir`.

        Args:
            first_step: finished updates; rows of later ones are cut.
            writes: False in all processes but one, which then write nothing.

        Raises:
            EctypeError: an unreadable row before one that still counts: cutting there would lose sound rows.
        """
        path = RunFolder(run_dir).metrics if writes else Path(os.devnull)
        if path.is_file():
            write_bytes_atomic(path, b"".join(_lines_up_to(path, first_step)))
        self._writes = writes
        self._stream = open(path, "ab")  # noqa: SIM115 - closed by `__exit__`

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def write(self, row: Row) -> None:
        """Append one row and hand it to the system, so that followers see it."""
        self._stream.write(json.dumps(row).encode() + b"\n")
        self._stream.flush()

    def sync(self) -> None:
        """Wait until the disk holds every row; call it before a checkpoint that counts on them."""
        if self._writes:
            os.fsync(self._stream.fileno())


def parse_row(line: str | bytes) -> Row:
    """The row in one line of the file: a step, and of everything else a number, true, false or null.

    Raises:
        ValueError: anything else.
    """
    row = parse_json(line)
    if not isinstance(row, dict):
        raise ValueError("no JSON object")
    if type(step := row.get("step")) is not int or not 0 < step < 1 << 53:
        raise ValueError(f"step {step!r}")
    for name, value in row.items():
        fits = isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)
        if value is not None and not fits:
            raise ValueError(f"{name} is no number")
    return row


def rows_after(run_dir: Path, step: int) -> list[Row]:
    """Rows of updates after `step`, a last one that a crash tore left out; none without a file."""
    path, rows = RunFolder(run_dir).metrics, []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            rows.append(parse_row(line))
        except ValueError:
            break
    return [row for row in rows if row["step"] > step]


def last_rows(run_dir: Path, count: int) -> list[Row]:
    """At most the `count` last sound rows, by ascending step, read from the file's end: a long run has gigabytes.

    Lines that are no rows, as one that is being written, count for nothing; so does a missing file.
    """
    path, rows, rest = RunFolder(run_dir).metrics, {}, b""
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        place = stream.seek(0, os.SEEK_END)
        while place > 0 and len(rows) < count:
            begin = max(0, place - _BLOCK_BYTES)
            stream.seek(begin)
            lines = (stream.read(place - begin) + rest).split(b"\n")
            # The first line of a block that is not the file's first may begin before it.
            rest, lines = (b"", lines) if begin == 0 else (lines[0], lines[1:])
            for line in reversed(lines):
                with suppress(ValueError):
                    row = parse_row(line)
                    rows.setdefault(row["step"], row)
            place = begin
    return [rows[step] for step in sorted(rows)[-count:]]


def read_rows(run_dir: Path) -> dict[int, Row]:
    """Step -> row, ascending. Of rows with one step number the last counts: earlier ones were rolled back.

    Raises:
        EctypeError: no metrics, or an unreadable row other than a last one that a crash cut short.
    """
    path = RunFolder(run_dir).metrics
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EctypeError(f"{path}: {error}", "the log of a run", "train first: `ectype train`") from None
    rows: dict[int, Row] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = parse_row(line)
            rows[row["step"]] = row
        except ValueError as error:
            if number == len(lines):
                break
            raise _damaged(path, number, error) from None
    if not rows:
        raise EctypeError(f"{path} has no rows", "at least one step", "train first: `ectype train`")
    return dict(sorted(rows.items()))


def read_metrics(run_dir: Path) -> TrainingLog:
    """A run's own log as series, NaN where a row holds no number, None where none does. Errors as for `read_rows`."""
    rows = read_rows(run_dir)

    def numbers(name: str) -> np.ndarray:
        return np.array([_number(row.get(name)) for row in rows.values()], np.float64)

    def series(name: str) -> np.ndarray | None:
        return numbers(name) if any(name in row for row in rows.values()) else None

    return TrainingLog(
        steps=np.array(list(rows), np.int64),
        loss=numbers("loss"),
        z_loss=series("z_loss"),
        grad_norm=series("grad_norm"),
        learning_rate=series("learning_rate"),
        skipped=series("skipped"),
    )


def seconds_of(run_dir: Path) -> float:
    """Seconds that the run's updates took. Errors as for `read_rows`."""
    return sum(row.get("step_seconds") or 0.0 for row in read_rows(run_dir).values())


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _lines_up_to(path: Path, last_step: int) -> list[bytes]:
    kept: list[bytes] = []
    unreadable: tuple[int, ValueError] | None = None
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        try:
            # A crash may tear a last line to something that reads like a whole one.
            counts = line.endswith(b"\n") and parse_row(line)["step"] <= last_step
        except ValueError as error:
            unreadable = unreadable or (number, error)
            continue
        if counts and unreadable is not None:
            raise _damaged(path, *unreadable)
        if counts:
            kept.append(line)
    if unreadable is not None and last_step > 0 and not kept:
        # Not the torn end of a log but no log at all: to begin a new one would lose what this one held.
        raise _damaged(path, *unreadable)
    return kept


def _damaged(path: Path, line: int, error: ValueError) -> EctypeError:
    return EctypeError(
        f"{path}, line {line}: no metrics row: {error}", "one JSON object per line, as `ectype train` wrote it",
        "restore the file from a copy",
    )  # fmt: skip
