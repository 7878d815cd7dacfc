"""`ectype evaluate`: held-out loss, KL and agreement at each landmark, or downstream tasks."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

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
TASKS_OPTION = typer.Option("--tasks", help="Tasks of lm-evaluation-harness, or the preset `eight`; may repeat.")
TOKENIZER_OPTION = typer.Option("--tokenizer", help="tokenizer.json, for --tasks.")
TASK_PATH_OPTION = typer.Option("--task-path", help="Folder with further task definitions.")
LIMIT_OPTION = typer.Option("--limit", min=1, help="First so many items of each task. Default: all.")
SHOTS_OPTION = typer.Option("--shots", min=0, help="Solved examples before each question. Default: the task's own.")
MAX_LENGTH_OPTION = typer.Option("--max-length", min=2, help="Longest input of a task in tokens. Default: the model's.")


@verb
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run; for --tasks also bare weights.")],
    reference: Annotated[str | None, REFERENCE_OPTION] = None,
    landmark: Annotated[list[int] | None, LANDMARK_OPTION] = None,
    compute: Annotated[str, COMPUTE_OPTION] = "float32",
    batch_windows: Annotated[int | None, BATCH_OPTION] = None,
    tasks: Annotated[list[str] | None, TASKS_OPTION] = None,
    tokenizer: Annotated[Path | None, TOKENIZER_OPTION] = None,
    task_path: Annotated[Path | None, TASK_PATH_OPTION] = None,
    limit: Annotated[int | None, LIMIT_OPTION] = None,
    shots: Annotated[int | None, SHOTS_OPTION] = None,
    max_length: Annotated[int | None, MAX_LENGTH_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Measure a run and its reference on held-out text, or on tasks.

    At each landmark that both have. Each record lies in RUN/evaluations; a record whose inputs have not changed is
    kept, so a stopped evaluation goes on where it was.

    With --tasks, lm-evaluation-harness asks the questions, of the landmarks that are there or else of the newest
    checkpoint: ectype evaluate runs/calm --tasks eight --tokenizer tokenizer.json. Of a checkpoint or a Hugging Face
    folder the result is only printed.

    Example: ectype evaluate runs/calm --reference package:demo/bundle --landmark 640
    """
    from ectype.errors import EctypeError
    from ectype.evaluate.runner import Settings, default_settings, evaluate_run, find_landmarks
    from ectype.recipe.reference import named_reference
    from ectype.run.manifest import load_run_recipe

    if compute not in ("float32", "bfloat16"):
        raise EctypeError(f"--compute {compute}", "float32 or bfloat16", "leave it out for float32")
    task_options = {
        "tokenizer": tokenizer, "task_path": task_path, "limit": limit, "shots": shots, "max_length": max_length
    }  # fmt: skip
    if tasks and reference is not None:
        raise EctypeError("--reference with --tasks", "one of the two", "tasks have no reference: leave it out")
    if tasks:
        options = {name: value for name, value in task_options.items() if value is not None}
        _evaluate_tasks(run, tasks, landmark, compute, batch_windows, options, json_output)
        return
    stray = [f"--{name.replace('_', '-')}" for name, value in task_options.items() if value is not None]
    if stray:
        raise EctypeError(f"{', '.join(stray)} without --tasks", "the tasks to run", "name them, or leave it out")
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


def _evaluate_tasks(
    path: Path, names: list[str], landmarks: list[int] | None, compute: Literal["float32", "bfloat16"],
    batch_rows: int | None, options: dict[str, Any], json_output: bool,
) -> None:  # fmt: skip
    from ectype.errors import EctypeError
    from ectype.run.paths import RunFolder
    from ectype.tasks.runner import TaskSettings, evaluate_run_tasks, evaluate_tasks

    if "tokenizer" not in options:
        raise EctypeError("--tasks without --tokenizer", "the run's tokenizer.json", "give --tokenizer FILE")
    separate = tuple(name for each in names for name in each.split(",") if name)
    settings = TaskSettings(
        separate, batch_rows=batch_rows or TaskSettings.batch_rows, compute_dtype=compute, **options
    )
    if RunFolder(path).recipe.is_file():
        with ProgressBar() as progress:
            found = evaluate_run_tasks(path, settings, landmarks=landmarks or (), progress=progress)
        result = {"evaluations": {str(step): each.model_dump(mode="json") for step, each in found.items()}}
        emit(result, json_output, lambda: _show_tasks({f"step {step}": each for step, each in found.items()}))
        return
    if landmarks:
        raise EctypeError(f"--landmark for {path}, which is no run", "a run folder", "leave --landmark out")
    with ProgressBar() as progress:
        one = evaluate_tasks(path, settings, progress=progress)
    emit(one.model_dump(mode="json"), json_output, lambda: _show_tasks({str(path): one}))


def _show_tasks(evaluations: dict[str, Any]) -> None:
    for name, evaluation in evaluations.items():
        console().print(f"{name}, {evaluation.protocol.harness}")
        console().print(_task_table(evaluation))


def _task_table(evaluation: Any) -> Any:
    table = plain_table("task", "version", "shots", "items", "metric", "value", "std. error", numbers_from=5)
    for task, result in evaluation.tasks.items():
        shots = "differ" if result.shots is None else str(result.shots)
        for metric, measured in result.metrics.items():
            error = "" if measured.standard_error is None else f"{measured.standard_error:.4f}"
            value = number(measured.value, ".4f")
            table.add_row(task, result.version, shots, f"{result.items:,}", metric, value, error)
    return table


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
