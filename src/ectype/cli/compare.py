"""`ectype compare`: the verdict on a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ectype.cli.output import (
    JSON_OPTION,
    REFERENCE_OPTION,
    ProgressBar,
    console,
    emit,
    number,
    plain_table,
    share,
    verb,
)

if TYPE_CHECKING:
    from ectype.compare.record import VerdictRecord

TWINS_OPTION = typer.Option(
    "--twins", min=1, help="Twins to measure the noise with. Default: those that exist, else 3 for a short run."
)
NO_TWINS_OPTION = typer.Option("--no-twins", help="Train none; use what noise is known already.")
RESEEDED_OPTION = typer.Option(
    "--reseeded", help="Twins of other data seeds: for a reference that read the data in another order."
)
WRITE_NOISE_OPTION = typer.Option("--write-noise", help="Also write the noise record to this file.")


@verb
def compare(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    reference: Annotated[str | None, REFERENCE_OPTION] = None,
    twins: Annotated[int | None, TWINS_OPTION] = None,
    no_twins: Annotated[bool, NO_TWINS_OPTION] = False,
    reseeded: Annotated[bool, RESEEDED_OPTION] = False,
    write_noise: Annotated[Path | None, WRITE_NOISE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int:
    """Say whether a run made the same model as its reference.

    Exit code 0: the same model; 1: not the same; 3: not enough evidence. Tolerances are the floors of float32
    arithmetic and the noise of twins: the same run from step-0 weights changed by one part in a million.
    Example: ectype compare runs/calm --reference package:demo/bundle
    """
    from ectype.compare.known_noise import ensure_noise
    from ectype.compare.runner import compare_run
    from ectype.recipe.reference import named_reference
    from ectype.run.manifest import load_run_recipe

    found_reference = named_reference(load_run_recipe(run), reference)
    with ProgressBar() as progress:
        noise = ensure_noise(run, found_reference, twins, reseeded=reseeded, train=not no_twins, progress=progress)
    if write_noise is not None:
        _write_noise(write_noise, noise)
    verdict, record = compare_run(run, found_reference, noise)
    emit(record.model_dump(mode="json"), json_output, lambda: _show(record, run))
    return verdict.exit_code


def _write_noise(path: Path, noise: Any) -> None:
    from ectype.compare.noise import write_noise
    from ectype.errors import EctypeError

    if noise.record is None:
        raise EctypeError("--write-noise, and no noise was measured", "at least one twin", "leave out --no-twins")
    write_noise(path, noise.record)


def _show(record: "VerdictRecord", run: Path) -> None:
    from ectype.compare.criteria import Outcome
    from ectype.compare.held_out_criteria import LOSS_BY_SET, TOP1
    from ectype.compare.ranking import folded
    from ectype.run.paths import RunFolder

    def amount(criterion: Any, value: float | None, form: str) -> str:
        return share(value) if criterion.name == TOP1 else number(value, form)

    table = plain_table("criterion", "landmark", "measured", "tolerance", "outcome", numbers_from=1)
    marks = {Outcome.HOLDS: "holds", Outcome.BROKEN: "[red]broken[/]", Outcome.UNCLEAR: "[yellow]unclear[/]"}
    for criterion, others in folded(record.criteria):
        where = "" if criterion.landmark is None else str(criterion.landmark)
        kind = "sets" if criterion.name == LOSS_BY_SET else "domains"
        name = f"its worst of {others} {kind}: {criterion.domain}" if others else criterion.name
        bound = "none" if criterion.tolerance is None else amount(criterion, criterion.tolerance, ".4g")
        table.add_row(name, where, amount(criterion, criterion.measured, ".3g"), bound, marks[criterion.outcome])
    out = console()
    out.print(table)
    for note, names in open_questions(record).items():
        out.print(f"{', '.join(names)}: {note}.")
    out.print(f"Comparable step by step: {record.horizon.text}.")
    if record.overlay and record.overlay.warning:
        out.print(f"[yellow]Warning: {record.overlay.warning}[/]")
    colour = {"same model": "green", "not the same model": "red"}.get(record.verdict, "yellow")
    out.print(f"[bold {colour}]{record.verdict}[/]: {record.reason}")
    out.print(f"All criteria, with units and the sources of tolerances: {RunFolder(run).verdict}", soft_wrap=True)


def open_questions(record: "VerdictRecord") -> dict[str, list[str]]:
    """What is said of criteria that do not hold, and of which ones."""
    from ectype.compare.criteria import Outcome

    found: dict[str, list[str]] = {}
    for criterion in record.criteria:
        if criterion.outcome is not Outcome.HOLDS and criterion.note:
            names = found.setdefault(criterion.note.rsplit("; ", 1)[-1], [])
            if criterion.name not in names:
                names.append(criterion.name)
    return found
