"""`ectype faults`: make every known fault once, and show what catches it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ectype.cli.output import JSON_OPTION, ProgressBar, console, emit, plain_table, verb

OUT_ARGUMENT = typer.Argument(metavar="OUT", help="Folder to work in; a matrix begun there goes on.")
REGIME_OPTION = typer.Option("--regime", help="`replay` or `re-run`; may repeat. Default: both.")
FAULT_OPTION = typer.Option("--fault", help="A fault by name; may repeat. Default: all of them (docs/faults.md).")
LIST_OPTION = typer.Option("--list", help="Only name the faults and say what each is.")
RUN_OPTION = typer.Option("--run", help="Also keep the matrix in this run folder, for its report.")


@verb
def faults(
    out: Annotated[Path | None, OUT_ARGUMENT] = None,
    regime: Annotated[list[str] | None, REGIME_OPTION] = None,
    fault: Annotated[list[str] | None, FAULT_OPTION] = None,
    honest: Annotated[int, typer.Option(min=0, help="Honest runs in each regime.")] = 10,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time. Default: one for each core.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Recipe field=value; may repeat.")] = None,
    run: Annotated[Path | None, RUN_OPTION] = None,
    only_list: Annotated[bool, LIST_OPTION] = False,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int | None:
    """Make each known fault once, and show what catches it.

    Ends with 1 if an honest run is called broken, or if a fault that changes the model or its data is caught by nothing
    but the training loss where the data order is replayed.
    Example: ectype faults runs/faults
    """
    if only_list:
        _show_catalogue(json_output)
        return None
    from ectype.errors import EXIT_DONE, EXIT_NEGATIVE, EctypeError
    from ectype.faults.matrix import TABLES, fault_matrix
    from ectype.faults.record import write_matrix
    from ectype.faults.regimes import details
    from ectype.faults.table import honest_line, in_short, sound, time_line
    from ectype.run.paths import RunFolder

    if out is None:
        raise EctypeError("no OUT", "a folder to work in", "give one, as `ectype faults runs/faults`; or --list")
    chosen = details(regime or (), fault or (), honest, overrides or ())
    if run is not None:
        RunFolder(run).require()
    with ProgressBar() as bar:
        matrix = fault_matrix(out, chosen, jobs or len(os.sched_getaffinity(0)), bar)
    if run is not None:
        write_matrix(run, matrix)

    def show() -> None:
        for part in matrix.regimes:
            table = plain_table("fault", "first caught at", "also by", numbers_from=3)
            for row in part.faults:
                table.add_row(row.title, *in_short(row))
            console().print(f"{part.name}: {part.what}", table, honest_line(part), sep="\n")
        print(f"\n{time_line(matrix)}\nin full: {out / TABLES}")

    emit(matrix.model_dump(mode="json"), json_output, show)
    return EXIT_DONE if sound(matrix) else EXIT_NEGATIVE


def _show_catalogue(json_output: bool) -> None:
    from ectype.faults.catalogue import FAULTS

    found = [{"name": fault.name, "area": fault.area, "title": fault.title, "what": fault.what} for fault in FAULTS]

    def show() -> None:
        table = plain_table("name", "area", "title", numbers_from=3)
        for fault in found:
            table.add_row(fault["name"], fault["area"], fault["title"])
        console().print(table)

    emit({"faults": found}, json_output, show)
