"""`ectype status`: how far a run is, whether it runs, and what is wrong with it."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ectype.cli.output import JSON_OPTION, console, emit, plain_table, verb

PROMETHEUS_OPTION = typer.Option("--prometheus", help="Print Prometheus' text format.")
TEXTFILE_OPTION = typer.Option(
    "--textfile", metavar="FILE", help="Write Prometheus' text format here, for the node exporter."
)
FOLLOW_OPTION = typer.Option("--follow", help="Look again and again, until the run is finished.")
EVERY_OPTION = typer.Option("--every-seconds", min=0.1, max=86400, help="With --follow: between two looks.")


@verb
def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    prometheus: Annotated[bool, PROMETHEUS_OPTION] = False,
    textfile: Annotated[Path | None, TEXTFILE_OPTION] = None,
    follow: Annotated[bool, FOLLOW_OPTION] = False,
    every_seconds: Annotated[float, EVERY_OPTION] = 15.0,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int:
    """Show how far a run is, and whether it is well.

    It may be running, and is left alone. Exit code 0 for a run that is well, 1 for one that is stalled, lost, failed or
    unhealthy, or of which something was found.
    Example: ectype status runs/calm --textfile /var/lib/node_exporter/ectype.prom --follow
    """
    from ectype.artifacts import write_bytes_atomic
    from ectype.errors import EXIT_DONE, EXIT_NEGATIVE, EctypeError
    from ectype.run.prometheus import exposition
    from ectype.run.status import run_status

    if json_output and prometheus:
        raise EctypeError("--json with --prometheus", "one of them", "leave one out")
    if textfile is not None and textfile.suffix != ".prom":
        raise EctypeError(f"--textfile {textfile}", "a name that ends in .prom", "the node exporter reads no other")
    while True:
        found = run_status(run)
        if textfile is not None:
            write_bytes_atomic(textfile, exposition(found).encode())
        if prometheus:
            print(exposition(found), end="", flush=True)
        else:
            emit(found.record(), json_output, lambda: _show(found))  # noqa: B023 - called at once
        if not follow or found.state == "finished":
            return EXIT_DONE if found.well else EXIT_NEGATIVE
        time.sleep(every_seconds)


def _show(found: Any) -> None:
    """A few lines, a table of the processes where there are several, and what was found."""
    from rich.markup import escape

    out = console()
    out.print(f"[{'red' if found.bad_state else 'green'}]{found.state}[/]  {escape(found.words)}")
    share = found.completed_updates / found.target_updates
    saved = f"{found.saved_updates:,} saved"
    out.print(f"{found.completed_updates:,} of {found.target_updates:,} updates ({share:.1%}), {saved}{_left(found)}")
    if found.last is not None:
        out.print(_last(found))
    if len(found.processes) > 1:
        table = plain_table("process", "host", "phase", "for s", "sign s", "own s", "probe s", numbers_from=3)
        for sign in found.processes:
            numbers = [f"{sign.phase_seconds:.0f}", f"{sign.age_seconds:.0f}"]
            numbers += ["" if value is None else f"{value:.3g}" for value in (sign.own_seconds, sign.probe_seconds)]
            table.add_row(str(sign.process), escape(sign.host), escape(sign.ended or sign.phase), *numbers)
        out.print(table)
    for finding in found.findings:
        place = "" if finding.step is None else f" at step {finding.step:,}"
        out.print(f"[yellow]{finding.kind.replace('_', ' ')}{place}: {escape(finding.text)}[/]")


def _left(found: Any) -> str:
    if found.left_seconds is None or found.state not in ("training", "starting"):
        return ""
    hours, rest = divmod(round(found.left_seconds), 3600)
    return f", about {hours}:{rest // 60:02}:{rest % 60:02} left"


def _last(found: Any) -> str:
    """The last update, and the pace of the recent ones."""
    parts = [
        f"{name} {found.last[field]:{form}}" for name, field, form in _NUMBERS if found.last.get(field) is not None
    ]
    if found.step_seconds is not None:
        usual = "" if found.settled_step_seconds is None else f" (settled {found.settled_step_seconds:.3g} s)"
        parts.append(f"{found.step_seconds:.3g} s an update{usual}")
    if found.session_goodput is not None:
        parts.append(f"goodput {found.session_goodput:.0%}")
    return ", ".join(parts)


_NUMBERS = (
    ("loss", "loss", ".4f"), ("gradient norm", "grad_norm", ".3g"), ("tokens/s", "tokens_per_second", ",.0f"),
    ("MFU", "mfu", ".1%"),
)  # fmt: skip
