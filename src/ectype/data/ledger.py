"""The record of consumed windows: one append-only file per process, 32 bytes per step, whole across crashes.

Records are fixed in size. A session (one start of the program) begins with the first batch it will consume, which takes
back whatever earlier sessions recorded from that batch on: those updates were rolled back. It then names the rows its
process reads, and appends one digest per batch. A record that a crash tore fails its check word and counts for nothing.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ectype.data.digest import batch_digest
from ectype.data.permutation import mix64
from ectype.errors import EctypeError
from ectype.run.paths import RunFolder

RECORD = np.dtype([("number", "<u8"), ("words", "<u8", 2), ("kind", "<u2"), ("part", "<u2"), ("check", "<u4")])
"""SESSION: number = first batch, words = (process index, process count), part = format version. ROWS: number = count of
parts, words = (first row, rows) of one run of rows; parts count from 0. BATCH: number = batch, words = digest of this
process's rows."""
SESSION, ROWS, BATCH = 1, 2, 3
FORMAT = 1
"""Of records and of the digest in them; a change of either is a new version, which starts with a new run."""
_SAME_AS_FORMAT = (0, FORMAT)
"""0: sessions begun before the version was recorded."""


class Ledger:
    """Writes one process's record. Call `begin` at every start of the program, `append` after each finished update."""

    def __init__(self, run_dir: Path, process_index: int, process_count: int) -> None:
        self._run_dir, self._process = run_dir, (process_index, process_count)
        self._path = RunFolder(run_dir).process_ledger(process_index)
        self._rows: np.ndarray | None = None
        self._pending: list[bytes] = []
        self.digest = np.zeros(2, np.uint64)
        """Sum of the digests of all batches that this process consumed and that still count. [2] uint64. The sum over
        processes is the run's digest, whatever the host counts were."""

    def begin(self, first_batch: int) -> None:
        """Start a session whose first consumed batch is `first_batch`; written through at once."""
        records = _file_records(self._path)
        good = np.flatnonzero(records["check"] == _check_words(records))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab") as stream:
                stream.truncate((int(good[-1]) + 1 if len(good) else 0) * RECORD.itemsize)
        except OSError as error:
            raise _unwritable(self._path, error) from None
        # Process 0 also answers for processes of an earlier, larger job. Summed before the new session is written: it
        # takes nothing back from earlier batches, and process 0 may not have written its own yet.
        index, count = self._process
        past = range(count, 1 << 16) if index == 0 else range(0)
        self.digest = digest_before(self._run_dir, first_batch, lambda process: process == index or process in past)
        self._rows = None
        self._pending = [_record(SESSION, first_batch, self._process, FORMAT)]
        self.flush()

    def append(self, batch_number: int, rows: np.ndarray, window_ids: np.ndarray) -> None:
        """Record that the update fed by `batch_number` consumed `window_ids` ([b]) in global rows `rows` ([b])."""
        if self._rows is None or not np.array_equal(rows, self._rows):
            self._rows = np.array(rows)
            self._pending += _rows_records(self._rows)
        digest = batch_digest(batch_number, rows, window_ids)
        self._pending.append(_record(BATCH, batch_number, digest))
        self.digest += digest

    def flush(self) -> None:
        """Write what was appended and wait until the disk holds it; call it before a checkpoint is finished."""
        if not self._pending:
            return
        data, self._pending = b"".join(self._pending), []
        try:
            with open(self._path, "ab") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise _unwritable(self._path, error) from None


def digest_before(run_dir: Path, batch_number: int, wanted: Callable[[int], bool] = lambda process: True) -> np.ndarray:
    """Sum of the digests of all batches below `batch_number` that still count, over `wanted` processes. [2] uint64."""
    total = np.zeros(2, np.uint64)
    if RunFolder(run_dir).process_ledger(0).exists():
        for process in filter(wanted, ledger_processes(run_dir)):
            for span in spans_of(run_dir, process):
                total += span.digests[span.batches < batch_number].sum(axis=0, dtype=np.uint64)
    return total


@dataclass(frozen=True)
class LedgerSession:
    """One start of the program, as process 0 recorded it."""

    first_batch: int
    process_count: int
    end_batch: int | None
    """Batches from here on were taken back by a later session; None: none were."""


@dataclass(frozen=True)
class Span:
    """What one process recorded in one session with the same rows and what still counts. n batches."""

    process: int
    session: int
    rows: np.ndarray
    """[b] int64"""
    batches: np.ndarray
    """[n] int64, in the order they were recorded."""
    digests: np.ndarray
    """[n, 2] uint64"""


def ledger_processes(run_dir: Path) -> list[int]:
    """Processes that ever recorded something. Raises EctypeError when process 0, which every session has, did not."""
    run = RunFolder(run_dir)
    found = run.ledger_processes()
    if not found or found[0] != 0:
        raise EctypeError(
            f"run {run_dir} has no ledger of process 0", str(run.process_ledger(0)), "name a run's folder"
        )
    return found


def sessions_of(run_dir: Path) -> list[LedgerSession]:
    """Every start of the run's program, in order."""
    records, _ = read_records(RunFolder(run_dir).process_ledger(0))
    starts = records[records["kind"] == SESSION]
    firsts = [int(number) for number in starts["number"]]
    return [
        LedgerSession(firsts[i], int(count), min(firsts[i + 1 :], default=None))  # type: ignore[type-var]
        for i, count in enumerate(starts["words"][:, 1])
    ]


def spans_of(run_dir: Path, process: int) -> Iterator[Span]:
    """What `process` recorded, less what later sessions took back, in order.

    A process takes part in every session of more than `process` processes, so its sessions are those of process 0 of
    equal first batch and process count. One that it lacks finished no update, since an update needs every process.

    Raises:
        EctypeError: a session that process 0 does not know, or batches before their rows were named.
    """
    path, sessions = RunFolder(run_dir).process_ledger(process), sessions_of(run_dir)
    records, _ = read_records(path)
    starts = np.flatnonzero(records["kind"] == SESSION)
    number = len(sessions)
    spans: list[Span] = []
    for start, stop in reversed([*zip(starts, [*starts[1:], len(records)], strict=False)]):
        wanted = (int(records["number"][start]), int(records["words"][start, 1]))
        matches = [n for n in range(number) if (sessions[n].first_batch, sessions[n].process_count) == wanted]
        if matches:
            number = matches[-1]
            spans = _session_spans(records[start + 1 : stop], process, number, sessions[number].end_batch, path) + spans
        elif (records["kind"][start:stop] == BATCH).any():
            raise EctypeError(
                f"ledger {path}: a session from batch {wanted[0]} of {wanted[1]} processes",
                "one that process 0 has, too", "restore the ledger files of the run from one copy",
            )  # fmt: skip
    return iter(spans)


def read_records(path: Path) -> tuple[np.ndarray, int]:
    """The sound records of a ledger file ([n] RECORD), and how many torn or damaged ones it holds besides.

    Raises:
        EctypeError: a session of another format version, whose digests can't be compared with today's.
    """
    records = _file_records(path)
    sound = records["check"] == _check_words(records)
    versions = records["part"][sound & (records["kind"] == SESSION)]
    for version in versions[~np.isin(versions, _SAME_AS_FORMAT)]:
        raise EctypeError(
            f"ledger {path} has a session of format {version}", f"format {FORMAT}",
            "use the Ectype that wrote it: what it consumed can't be compared with this version's digests",
        )  # fmt: skip
    return records[sound], int((~sound).sum()) + bool(path.stat().st_size % RECORD.itemsize)


def _file_records(path: Path) -> np.ndarray:
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise EctypeError(f"ledger {path}: {error}", "a readable ledger file", "restore it from a copy") from None
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)


def _unwritable(path: Path, error: OSError) -> EctypeError:
    return EctypeError(f"ledger {path}: {error}", "a writable run folder", "free space, then resume")


def _session_spans(records: np.ndarray, process: int, session: int, end: int | None, path: Path) -> list[Span]:
    spans: list[Span] = []
    changes = np.flatnonzero((records["kind"] == ROWS) & (records["part"] == 0))
    if len(records) and (not len(changes) or changes[0] != 0):
        raise EctypeError(
            f"ledger {path}: batches without rows in session {session}",
            "rows before batches",
            "restore the ledger file",
        )
    if not len(changes):
        return spans  # A session that ended before its first batch.
    for start, stop in zip(changes, np.append(changes[1:], len(records)), strict=True):
        part = records[start:stop]
        runs = part[part["kind"] == ROWS]["words"].astype(np.int64)
        batches = part[part["kind"] == BATCH]
        batches = batches if end is None else batches[batches["number"] < end]
        rows = np.concatenate([np.arange(first, first + count) for first, count in runs])
        spans.append(Span(process, session, rows, batches["number"].astype(np.int64), batches["words"]))
    return spans


def _rows_records(rows: np.ndarray) -> list[bytes]:
    if not len(rows):
        return [_record(ROWS, 1, (0, 0))]  # Other processes record what this one reads.
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [_record(ROWS, len(runs), (int(run[0]), len(run)), part) for part, run in enumerate(runs)]


def _record(kind: int, number: int, words: tuple[int, int] | np.ndarray, part: int = 0) -> bytes:
    record = np.zeros(1, RECORD)
    record["kind"], record["number"], record["part"], record["words"] = kind, number, part, words
    record["check"] = _check_words(record)
    return record.tobytes()


def _check_words(records: np.ndarray) -> np.ndarray:
    mixed = mix64(records["kind"].astype(np.uint64) << np.uint64(16) | records["part"].astype(np.uint64))
    for column in (records["number"], records["words"][:, 0], records["words"][:, 1]):
        mixed = mix64(mixed ^ column + np.uint64(0x9E3779B97F4A7C15))
    return (mixed & np.uint64(0xFFFFFFFF)).astype(np.uint32)
