"""Where a run's seconds went: updates that count, and all that is kept out of step times.

`goodput.jsonl` gets one line for each thing that took time besides updates, appended as it ends, so that a kill loses
none. The updates' own seconds stand in `metrics.jsonl`.
"""

import json
import math
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ectype.artifacts import parse_json
from ectype.run.health import End
from ectype.run.metrics import parse_row
from ectype.run.paths import RunFolder

Cost = Literal["start", "restore", "compile", "save_stall", "lost", "other", "evaluation"]
_BEGIN = "begin"


@dataclass(frozen=True)
class Goodput:
    """Seconds of one session, or of all; `productive_seconds` is spent in updates that still count."""

    productive_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    start_seconds: float = 0.0
    """From the call until a checkpoint is looked for: devices, index, run folder."""
    restore_seconds: float = 0.0
    """Reading a checkpoint, or the step-0 weights."""
    compile_seconds: float = 0.0
    save_stall_seconds: float = 0.0
    """The loop stood still for a save; what a save writes in the background is not counted."""
    lost_seconds: float = 0.0
    """Updates of earlier sessions that this one had to do again, or that were rolled back."""
    other_seconds: float = 0.0
    """The rest of the loop. Not known of a session that was killed."""
    evaluation_seconds: float = 0.0
    lost_steps: int = 0

    @property
    def total_seconds(self) -> float:
        """All seconds that are accounted for."""
        return sum(value for name, value in asdict(self).items() if name.endswith("_seconds"))

    @property
    def fraction(self) -> float | None:
        """Productive share of the total; None before the first second."""
        return self.productive_seconds / self.total_seconds if self.total_seconds else None

    def record(self) -> dict[str, Any]:
        """As plain numbers, seconds to the millisecond."""
        fraction = self.fraction
        return {name: round(value, 3) for name, value in asdict(self).items()} | {
            "total_seconds": round(self.total_seconds, 3),
            "goodput": None if fraction is None else round(fraction, 4),
        }


@dataclass(frozen=True)
class SessionGoodput:
    """One start of the program."""

    from_step: int
    ended: End | Literal["killed"]
    """`killed`: nothing says how it ended. The session in progress reads so, too."""
    goodput: Goodput


class GoodputLog:
    """Appends to `goodput.jsonl`, in one process of a job, what a session that begins now spends its seconds on."""

    def __init__(self, run_dir: Path, *, writes: bool = True) -> None:
        self._path, self._writes = RunFolder(run_dir).goodput, writes
        self._began, self._known_seconds = time.perf_counter(), 0.0

    @property
    def age_seconds(self) -> float:
        """Since the session began."""
        return time.perf_counter() - self._began

    def begin(self, from_step: int) -> None:
        """The session goes on from `from_step` finished updates."""
        self._append({"what": _BEGIN, "from_step": from_step})

    def add(self, what: Cost, seconds: float) -> None:
        """This session spent `seconds` on something besides updates."""
        self._known_seconds += seconds
        self._append({"what": what, "seconds": round(seconds, 6)})

    @contextmanager
    def spending(self, what: Cost) -> Iterator[None]:
        """Time the block, also one that is left by an error."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(what, time.perf_counter() - began)

    def updated(self, seconds: float) -> None:
        """An update and the wait for its data took `seconds`; its row of metrics says so, too."""
        self._known_seconds += seconds

    def lost(self, seconds: float, steps: int) -> None:
        """Updates of earlier sessions will be done again."""
        self._append({"what": "lost", "seconds": round(seconds, 6), "steps": steps})

    def end(self, ended: End) -> None:
        """The session ends, and what it spent on nothing in particular is known."""
        other = max(0.0, self.age_seconds - self._known_seconds)
        self._append({"what": "other", "seconds": round(other, 6), "ended": ended})

    def _append(self, event: dict[str, Any]) -> None:
        if self._writes:
            line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **event}).encode()
            with open(self._path, "a+b") as stream:
                # A line of its own, whatever a crash has torn.
                torn = stream.tell() > 0 and (stream.seek(-1, 2), stream.read(1))[1] != b"\n"
                stream.write((b"\n" if torn else b"") + line + b"\n")


def read_goodput(run_dir: Path) -> tuple[Goodput, list[SessionGoodput]]:
    """Of the whole run, and of each session. Torn or damaged lines count for nothing; so does a missing file."""
    sessions: list[SessionGoodput] = []
    evaluation = 0.0
    for event in _sound_lines(RunFolder(run_dir).goodput, _parse_event):
        what = event["what"]
        if what == _BEGIN:
            sessions.append(SessionGoodput(int(event["from_step"]), "killed", Goodput()))
        elif what == "evaluation":
            evaluation += event["seconds"]
        elif sessions:
            sessions[-1] = _with_event(sessions[-1], event)
    for row in _sound_lines(RunFolder(run_dir).metrics, parse_row):
        number = max((i for i, session in enumerate(sessions) if session.from_step < row["step"]), default=None)
        if number is not None:
            wait = row.get("data_wait_seconds") or 0.0
            sessions[number] = _plus(
                sessions[number], productive_seconds=(row.get("step_seconds") or 0.0) - wait, data_wait_seconds=wait
            )
    whole = Goodput(**{f.name: sum(getattr(session.goodput, f.name) for session in sessions) for f in fields(Goodput)})
    return replace(whole, evaluation_seconds=whole.evaluation_seconds + evaluation), sessions


def _with_event(session: SessionGoodput, event: dict[str, Any]) -> SessionGoodput:
    session = _plus(session, **{f"{event['what']}_seconds": event["seconds"], "lost_steps": event.get("steps", 0)})
    return replace(session, ended=event.get("ended", session.ended))


def _plus(session: SessionGoodput, **amounts: float) -> SessionGoodput:
    old = session.goodput
    return replace(
        session, goodput=replace(old, **{name: getattr(old, name) + value for name, value in amounts.items()})
    )


def _parse_event(line: bytes) -> dict[str, Any]:
    """One line of `goodput.jsonl`. Raises ValueError for what no session writes."""
    event = parse_json(line)
    what = event.get("what") if isinstance(event, dict) else None
    if what == _BEGIN:
        numbers = [event.get("from_step")]
    elif what in typing.get_args(Cost):
        numbers = [event.get("seconds"), event.get("steps", 0)]
    else:
        raise ValueError(f"no event: {what!r}")
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise ValueError(f"{what} of {numbers}")
    return event


def _sound_lines(path: Path, parse: Callable[[bytes], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError):
            yield parse(line)
