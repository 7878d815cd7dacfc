"""`ectype evaluate`: held-out loss, KL and agreement at each landmark."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ectype.cli.output import (
    JSON_OPTION,
    REFERENCE_OPTION,
    ProgressBar,
    console,
    emit,
    number,
    plain_table,
    verb,
)

LANDMARK_OPTION = typer.Option("--landmark", help="A step to evaluate; may repeat. Default: all that are there.")
COMPUTE_OPTION = typer.Option("--compute", help="Element type of both forward passes: float32 or bfloat16.")
BATCH_OPTION = typer.Option("--batch-windows", min=1, help="Windows at a time. Default: the placement's.")


@verb
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    reference: Annotated[str | None, REFERENCE_OPTION] = None,
    landmark: Annotated[list[int] | None, LANDMARK_OPTION] = None,
    compute: Annotated[str, COMPUTE_OPTION] = "float32",
    batch_windows: Annotated[int | None, BATCH_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Measure a run against its reference on held-out text.

    At each landmark that both have. Each record lies in RUN/evaluations; a record whose inputs have not changed is
    kept, so a stopped evaluation goes on where it was.
    Example: ectype evaluate runs/calm --reference package:demo/bundle --landmark 640
    """
    from ectype.errors import EctypeError
    from ectype.evaluate.runner import Settings, default_settings, evaluate_run, find_landmarks
    from ectype.recipe.reference import named_reference
    from ectype.run.manifest import load_run_recipe

    if compute not in ("float32", "bfloat16"):
        raise EctypeError(f"--compute {compute}", "float32 or bfloat16", "leave it out for float32")
    recipe = load_run_recipe(run)
    found_reference = named_reference(recipe, reference)
    settings = Settings(batch_windows or default_settings(run).batch_windows, compute)
    with ProgressBar() as progress:
        evaluations = evaluate_run(
            run, found_reference, landmarks=landmark or (), settings=settings, progress=progress
        )  # fmt: skip
    missing = find_landmarks(run, recipe, found_reference).missing
    result = {
        "reference": found_reference.name,
        "landmarks": {str(step): evaluation.overall.model_dump() for step, evaluation in evaluations.items()},
        "missing": list(missing),
    }
    emit(result, json_output, lambda: _show(evaluations, missing))


def _show(evaluations: dict[int, Any], missing: tuple[int, ...]) -> None:
    table = plain_table(
        "step", "targets", "loss", "reference", "difference", "KL mean", "KL p99", "top-1", numbers_from=0
    )
    for step, evaluation in evaluations.items():
        overall = evaluation.overall
        ours, theirs = overall.loss.ours, overall.loss.reference
        gap = None if ours is None or theirs is None else ours - theirs
        table.add_row(
            f"{step}", f"{overall.targets:,}", number(ours, ".4f"), number(theirs, ".4f"), number(gap, "+.1e"),
            number(overall.kl_mean, ".1e"), number(overall.kl_p99, ".1e"), _share(overall.top1_agreement),
        )  # fmt: skip
    console().print(table)
    if missing:
        console().print(f"no checkpoint yet for the landmarks {', '.join(map(str, missing))}")


def _share(agreement: float | None) -> str:
    """A share in percent, cut and not rounded, so that 100 % means every token."""
    return "not finite" if agreement is None else f"{math.floor(agreement * 1e4) / 100:.2f}%"
