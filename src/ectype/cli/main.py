"""`ectype`: one verb per stage. Only arguments, environment and exit codes live here; stages load on use."""

import sys

import typer

from ectype.cli import (
    compare,
    data,
    demo,
    evaluate,
    faults,
    launch,
    overlay,
    plan,
    recipes,
    report,
    status,
    train,
    weights,
)
from ectype.cli.huge_pages import restart_with_huge_pages
from ectype.errors import EXIT_STOPPED
from ectype.stopping import in_a_job, leave_at_once

app = typer.Typer(
    name="ectype", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Reproduce an open pre-training run in JAX, and prove that the result is the same model.",
)  # fmt: skip
app.add_typer(recipes.app, name="recipes")
app.add_typer(data.app, name="data")
app.add_typer(weights.app, name="weights")
app.add_typer(launch.app, name="launch")
app.command()(train.train)
app.command()(status.status)
app.command()(evaluate.evaluate)
app.command()(plan.plan)
app.command()(compare.compare)
app.command()(overlay.overlay)
app.command()(report.report)
app.command()(faults.faults)
app.command()(demo.demo)


def main() -> None:
    """What the command `ectype` runs."""
    restart_with_huge_pages()
    try:
        app()
    except SystemExit as end:
        if end.code == EXIT_STOPPED or (end.code and in_a_job()):
            leave_at_once(int(end.code))
        raise
    except BaseException as fault:
        if not in_a_job():
            raise
        sys.excepthook(type(fault), fault, fault.__traceback__)
        leave_at_once(1)
