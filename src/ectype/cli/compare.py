"""`ectype compare`: the verdict on a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ectype.cli.evaluate import REFERENCE_OPTION, load_named_reference, number, plain_table
from ectype.cli.output import JSON_OPTION, ProgressBar, console, emit, verb

TWINS_OPTION = typer.Option(
    "--twins", min=1, help="Twins to measure the noise with. Default: those that exist, else 3 for a short run."
)
NO_TWINS_OPTION = typer.Option("--no-twins", help="Train none; use what noise is known already.")
WRITE_NOISE_OPTION = typer.Option("--write-noise", help="Also write the noise record to this file.")
DEFAULT_TWINS = 3
LONGEST_UNASKED_SECONDS = 1800
"""Twins cost a whole run each, so they are trained unasked only where all of them take less than half an hour."""


@verb
def compare(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    reference: Annotated[str | None, REFERENCE_OPTION] = None,
    twins: Annotated[int | None, TWINS_OPTION] = None,
    no_twins: Annotated[bool, NO_TWINS_OPTION] = False,
    write_noise: Annotated[Path | None, WRITE_NOISE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int:
    """Say whether a run made the same model as its reference: exit 0 the same, 1 not, 3 not enough evidence.

    Tolerances are the floors of float32 arithmetic and the noise of twins: the same run from step-0 weights changed by
    one part in a million. Example: ectype compare runs/calm --reference package:demo/bundle
    """
    from ectype.compare.runner import compare_run
    from ectype.run.manifest import load_run_recipe

    found_reference = load_named_reference(reference, load_run_recipe(run))
    with ProgressBar() as progress:
        noise = _noise(run, found_reference, None if no_twins else twins, no_twins, progress)
    if write_noise is not None:
        _write_noise(write_noise, noise)
    verdict, record = compare_run(run, found_reference, noise)
    emit(record, json_output, lambda: _show(record, run))
    return verdict.exit_code


def _noise(run: Path, reference: Any, asked: int | None, no_twins: bool, progress: Any) -> Any:
    """The noise to judge by: the run's own twins, else the reference's record, else twins trained now."""
    from ectype.compare.twins import finished_twins, no_noise, reference_noise, twins_noise
    from ectype.run.manifest import load_run_recipe
    from ectype.run.metrics import seconds_of

    recipe = load_run_recipe(run)
    finished = finished_twins(run, recipe)
    wanted = asked or 0
    if not no_twins and not finished and not asked:
        known = reference_noise(reference, recipe)
        if known is not None:
            return known
        wanted = DEFAULT_TWINS if seconds_of(run) * DEFAULT_TWINS < LONGEST_UNASKED_SECONDS else 0
    for seed in range(1, wanted + 1):
        if seed not in finished:
            _train_twin(run, recipe, seed, progress)
    twins = finished_twins(run, recipe)
    if twins:
        return twins_noise(run, reference, twins, progress)
    return reference_noise(reference, recipe) or no_noise()


def _train_twin(run: Path, recipe: Any, seed: int, progress: Any) -> None:
    """Train one twin where the run was trained, or go on with one that was stopped."""
    from ectype.artifacts import read_json
    from ectype.compare.twins import PERTURBATION
    from ectype.recipe.placement import Placement
    from ectype.run.paths import RunFolder
    from ectype.train.loop import train_run

    folder = RunFolder(run)
    placement = Placement.model_validate(read_json(folder.manifest, "run")["placement"])
    train_run(recipe, placement, folder.twin(seed).path, perturb=(PERTURBATION, seed), progress=progress)


def _write_noise(path: Path, noise: Any) -> None:
    from ectype.compare.noise import write_noise
    from ectype.errors import EctypeError

    if noise.record is None:
        raise EctypeError("--write-noise, and no noise was measured", "at least one twin", "leave out --no-twins")
    write_noise(path, noise.record)


def _show(record: dict[str, Any], run: Path) -> None:
    from ectype.run.paths import RunFolder

    table = plain_table("criterion", "landmark", "measured", "tolerance", "outcome", numbers_from=1)
    marks = {"true": "holds", "false": "[red]broken[/]", "unclear": "[yellow]unclear[/]"}
    for criterion, others in _folded(record["criteria"]):
        where = "" if criterion["landmark"] is None else str(criterion["landmark"])
        name = f"its worst of {others} domains: {criterion['domain']}" if others else criterion["name"]
        bound = "none" if criterion["tolerance"] is None else format(criterion["tolerance"], ".4g")
        table.add_row(name, where, number(criterion["measured"], ".3g"), bound, marks[criterion["holds"]])
    out = console()
    out.print(table)
    out.print(f"Comparable step by step: {record['horizon']['text']}.")
    if record["overlay"] and record["overlay"]["warning"]:
        out.print(f"[yellow]Warning: {record['overlay']['warning']}[/]")
    colour = {"same model": "green", "not the same model": "red"}.get(record["verdict"], "yellow")
    out.print(f"[bold {colour}]{record['verdict']}[/]: {record['reason']}")
    out.print(f"All criteria are in {RunFolder(run).verdict}", soft_wrap=True)


def _folded(criteria: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Criteria with those of several domains folded into the worst one, and how many domains that was (0: none)."""
    groups: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for criterion in criteria:
        groups.setdefault((criterion["name"], criterion["landmark"]), []).append(criterion)
    order = ("true", "unclear", "false")

    def badness(criterion: dict[str, Any]) -> tuple[int, float]:
        measured, tolerance = criterion["measured"], criterion["tolerance"]
        return order.index(criterion["holds"]), abs(measured or 0.0) / (tolerance or 1.0)

    return [(max(group, key=badness), len(group) if group[0]["domain"] else 0) for group in groups.values()]
