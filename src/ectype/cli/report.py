"""`ectype report`: one self-contained HTML file about a run."""

from pathlib import Path
from typing import Annotated

import typer

from ectype.cli.output import JSON_OPTION, REFERENCE_OPTION, emit, verb


@verb
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file to write. Default: RUN/report.html.")] = None,
    reference: Annotated[str | None, REFERENCE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write the report of a run as one HTML file.

    It needs no network. Example: ectype report runs/demo
    """
    from ectype.report.build import write_report

    path = write_report(run, out, reference)
    emit({"report": str(path)}, json_output, lambda: print(path))
