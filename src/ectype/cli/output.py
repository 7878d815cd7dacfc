"""How every verb ends: one JSON object or text on standard output, one clear error, an exit code."""

import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import typer

from ectype.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED, EctypeError, Stopped
from ectype.stopping import StopSignals, ignore_further_signals

JSON_OPTION = typer.Option("--json", help="Print one JSON object on standard output.")
REMAP_OPTION = typer.Option(
    "--remap", help="FROM=TO: read index and token files below FROM from TO; may repeat, longest wins."
)
REFERENCE_OPTION = typer.Option("--reference", help="Folder with reference.json. Default: the recipe's own.")

_WIDE_CHARACTERS = 160
_INTERRUPTED = "interrupted; nothing half-written is left"
_CHECK_PATH = "check the path, its access rights and its disk"


def verb(function: Callable[..., Any]) -> Callable[..., None]:
    """Run a verb and turn its end into an exit code: it returns one, or None for done.

    `EctypeError` ends in its exit code, mostly 2, without a traceback, `Stopped`, Ctrl-C and SIGTERM in 75.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with StopSignals(ends_program=True) as signals, signals.at_once(_INTERRUPTED):
                code = function(*args, **kwargs)
        except EctypeError as error:
            _fail(error, bool(kwargs.get("json_output")))
            raise typer.Exit(error.exit_code) from None
        except Stopped as stop:
            ignore_further_signals()
            if kwargs.get("json_output"):
                print(json.dumps({"stopped": str(stop)}))
            print(f"stopped: {stop}", file=sys.stderr)
            raise typer.Exit(EXIT_STOPPED) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_DONE) from None
        except OSError as error:
            found = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            _fail(
                EctypeError(found, "a path that can be read and written", _CHECK_PATH), bool(kwargs.get("json_output"))
            )
            raise typer.Exit(EXIT_BAD_INPUT) from None
        raise typer.Exit(EXIT_DONE if code is None else code)

    return run


def emit(result: dict[str, Any], json_output: bool, show: Callable[[], None]) -> None:
    """Print `result` as one JSON object, or call `show` to print it for people."""
    if json_output:
        print(json.dumps(result, allow_nan=False))
    else:
        show()


def console() -> Any:
    """The console for people, on standard output; in a pipe or a file as wide as its tables are."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_WIDE_CHARACTERS)


def plain_table(*columns: str, numbers_from: int) -> Any:
    """A table without rules between its columns, so that it fits 80; columns from `numbers_from` on align right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place >= numbers_from else "left", no_wrap=place >= numbers_from)
    return table


def number(value: float | None, form: str) -> str:
    """A number for a table; what is not finite says so."""
    return "not finite" if value is None else format(value, form)


def share(fraction: float | None) -> str:
    """A share in percent, cut and not rounded, so that 100 % means all."""
    return "not finite" if fraction is None else f"{math.floor(fraction * 1e4) / 100:.2f}%"


class ProgressBar:
    """A `Progress` that draws bars on standard error, or a line every ten seconds without a terminal, with an ETA."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
        detail = TextColumn("{task.fields[detail]}")
        self._bars = Progress(*columns, TimeRemainingColumn(), detail, console=self._console, transient=True)
        self._tasks: dict[str, Any] = {}
        self._last_line_seconds = time.monotonic()
        self._began: dict[str, tuple[float, int]] = {}
        """When each task without a bar began, and at what count."""
        self.detail = ""
        """Shown behind the bar that is drawn next."""

    def __enter__(self) -> "ProgressBar":
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, label: str, done: int, total: int) -> None:
        if not self._console.is_terminal:
            now = time.monotonic()
            began, from_count = self._began.setdefault(label, (now, done))
            if now - self._last_line_seconds > 10:
                self._last_line_seconds = now
                place = f"{label}: {done}/{total}" if total else f"{label}: {done}"
                left = _left(total - done, (done - from_count) / (now - began)) if now > began else ""
                print(f"{place}{left}  {self.detail}".rstrip(), file=sys.stderr)
            return
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total or None, detail="")
        self._bars.update(self._tasks[label], completed=done, total=total or None, detail=self.detail)


def _left(units: int, units_per_second: float) -> str:
    """Time to the end at this pace; nothing where there is no pace or no end."""
    if units <= 0 or units_per_second <= 0:
        return ""
    minutes, seconds = divmod(round(units / units_per_second), 60)
    return f", about {minutes}:{seconds:02} left"


def _fail(error: EctypeError, json_output: bool) -> None:
    if json_output:
        print(json.dumps({"error": {"found": error.found, "expected": error.expected, "mend": error.mend}}))
    print(f"error: {error}", file=sys.stderr)
