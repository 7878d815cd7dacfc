"""`ectype evaluate`: held-out loss, KL and agreement of a run's landmarks or of any weights, or downstream tasks."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ectype.cli.evaluation_tables import landmark_row, show_domains, show_landmarks, show_tasks
from ectype.cli.output import JSON_OPTION, REFERENCE_OPTION, ProgressBar, console, emit, plain_table, verb

LANDMARK_OPTION = typer.Option("--landmark", help="A step to evaluate; may repeat. Default: all that are there.")
COMPUTE_OPTION = typer.Option("--compute", help="Element type of both forward passes: float32 or bfloat16.")
BATCH_OPTION = typer.Option("--batch-windows", min=1, help="Windows at a time. Default: the placement's.")
HELD_OUT_OPTION = typer.Option(
    "--held-out", help="Further text: a preset, PRESET=PATH, FILE.yaml or NAME=FILE.yaml; may repeat."
)
FOLLOW_OPTION = typer.Option("--follow", help="Evaluate each landmark as training comes to it, until the last.")
STATUS_OPTION = typer.Option("--status", help="Only say which landmarks are done, due, ahead or missing.")
AGAINST_OPTION = typer.Option("--against", help="Other weights, or a stored reference (.npz), to compare with.")
STORE_OPTION = typer.Option("--store", help="Write what the weights say of the text to this .npz, for --against.")
TOP_OPTION = typer.Option("--top", min=1, help="Most probable ids that --store keeps of each token. Default: 64.")
DISJOINT_OPTION = typer.Option(
    "--disjoint-windows", min=1, help="Training windows to search for held-out text. Default: 262,144."
)
TASKS_OPTION = typer.Option("--tasks", help="Tasks of lm-evaluation-harness, or the preset `eight`; may repeat.")
TOKENIZER_OPTION = typer.Option("--tokenizer", help="tokenizer.json, for --tasks and --held-out.")
TASK_PATH_OPTION = typer.Option("--task-path", help="Folder with further task definitions.")
LIMIT_OPTION = typer.Option("--limit", min=1, help="First so many items of each task. Default: all.")
SHOTS_OPTION = typer.Option("--shots", min=0, help="Solved examples before each question. Default: the task's own.")
MAX_LENGTH_OPTION = typer.Option("--max-length", min=2, help="Longest input of a task in tokens. Default: the model's.")

Given = dict[str, Any]
"""Options that the user gave, by name."""
_OF_RUNS = ("reference", "landmark", "follow", "status", "disjoint_windows")
_OF_WEIGHTS = ("against", "store", "top")
_OF_TASKS = ("task_path", "limit", "shots", "max_length")


@verb
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, a checkpoint or Hugging Face weights.")],
    reference: Annotated[str | None, REFERENCE_OPTION] = None,
    landmark: Annotated[list[int] | None, LANDMARK_OPTION] = None,
    held_out: Annotated[list[str] | None, HELD_OUT_OPTION] = None,
    follow: Annotated[bool, FOLLOW_OPTION] = False,
    status: Annotated[bool, STATUS_OPTION] = False,
    disjoint_windows: Annotated[int | None, DISJOINT_OPTION] = None,
    against: Annotated[Path | None, AGAINST_OPTION] = None,
    store: Annotated[Path | None, STORE_OPTION] = None,
    top: Annotated[int | None, TOP_OPTION] = None,
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
    """Measure a run, or any weights, on held-out text or on tasks.

    Of a run, each landmark that the reference has, too. Each record lies in RUN/evaluations; a record whose inputs have
    not changed is kept, so a stopped evaluation goes on where it was. With --follow this goes on beside training.

    Of a checkpoint, and with --against or --store, the result is only printed:
    ectype evaluate weights/a --against weights/b --held-out bundled

    With --tasks, lm-evaluation-harness asks the questions, of the landmarks that are there or else of the newest
    checkpoint: ectype evaluate runs/calm --tasks eight --tokenizer tokenizer.json

    Example: ectype evaluate runs/calm --reference package:demo/bundle --landmark 640
    """
    given: Given = {name: value for name, value in locals().items() if value not in (None, []) and value is not False}
    from ectype.errors import EctypeError
    from ectype.run.paths import RunFolder

    if compute not in ("float32", "bfloat16"):
        raise EctypeError(f"--compute {compute}", "float32 or bfloat16", "leave it out for float32")
    if tasks:
        _refuse(given, ("reference", "held_out", "follow", "status", "disjoint_windows", *_OF_WEIGHTS), "with --tasks")
        _evaluate_tasks(run, tasks, given, compute, json_output)
        return
    _refuse(given, _OF_TASKS, "without --tasks")
    for all_of_them in ("follow", "status"):
        if all_of_them in given:
            _refuse(given, ("landmark",), f"with --{all_of_them}, which takes all landmarks")
    if follow:
        _refuse(given, ("status",), "with --follow")
        _wait_for(RunFolder(run).recipe)
    if any(name in given for name in ("against", "store")) or not RunFolder(run).recipe.is_file():
        if not any(name in given for name in ("held_out", "against", "store")):
            RunFolder(run).require()
        _refuse(given, _OF_RUNS, f"for {run}, which is measured as bare weights")
        _evaluate_weights(run, given, compute, json_output)
    else:
        _refuse(given, ("top",), "without --store")
        _evaluate_run(run, given, compute, json_output)


def _wait_for(file: Path) -> None:
    """Training and its follower may be started at once."""
    import sys
    import time

    if not file.is_file():
        print(f"waiting for {file}", file=sys.stderr, flush=True)
    while not file.is_file():
        time.sleep(1)


def _refuse(given: Given, names: tuple[str, ...], why: str) -> None:
    from ectype.errors import EctypeError

    stray = [f"--{name.replace('_', '-')}" for name in names if name in given]
    if stray:
        raise EctypeError(f"{', '.join(stray)} {why}", "options that belong together", "leave one or the other out")


def _evaluate_run(run: Path, given: Given, compute: Literal["float32", "bfloat16"], json_output: bool) -> None:
    from dataclasses import replace

    from ectype.evaluate.disjoint import CHECKED_WINDOWS, require_disjoint
    from ectype.evaluate.landmarks import find_landmarks
    from ectype.evaluate.record import read_evaluation
    from ectype.evaluate.runner import default_settings, evaluate_run, run_texts
    from ectype.recipe.held_out_sets import MAIN_SET, named_sets
    from ectype.recipe.reference import named_reference
    from ectype.run.manifest import load_run_recipe
    from ectype.run.paths import RunFolder

    recipe = load_run_recipe(run)
    reference = named_reference(recipe, given.get("reference"))
    texts = run_texts(recipe, reference, named_sets(given.get("held_out", ())), given.get("tokenizer"))
    settings = replace(default_settings(run), compute_dtype=compute)
    settings = replace(settings, batch_windows=given.get("batch_windows", settings.batch_windows))
    if "status" in given:
        _show_status(run, reference, texts, settings, json_output)
        return
    windows = given.get("disjoint_windows", CHECKED_WINDOWS)
    if "follow" in given:
        _follow(run, reference, texts, settings, windows, json_output)
        return
    with ProgressBar() as progress:
        evaluations = evaluate_run(
            run, reference, landmarks=given.get("landmark", ()), texts=texts, settings=settings,
            disjoint_windows=windows, progress=progress,
        )  # fmt: skip
    searched = require_disjoint(run, recipe, texts, most_windows=windows)
    others = [name for name in texts if name != MAIN_SET]
    folder = RunFolder(run)
    on_sets = {
        name: {step: read_evaluation(folder.set_evaluation(name, step)) for step in evaluations} for name in others
    }
    missing = find_landmarks(run, recipe, reference).missing
    result = {
        "reference": reference.name,
        "landmarks": {str(step): evaluation.overall.model_dump() for step, evaluation in evaluations.items()},
        "missing": list(missing),
        "sets": {
            name: {str(step): _all_summaries(each) for step, each in found.items()} for name, found in on_sets.items()
        },
        "disjoint": searched if isinstance(searched, str) else searched.model_dump(mode="json"),
    }

    def show() -> None:
        show_landmarks(evaluations, missing)
        for name, found in on_sets.items():
            show_domains(f"{name}, step {max(found)}", found[max(found)])
        console().print(_searched(searched), soft_wrap=True)

    emit(result, json_output, show)


def _searched(found: Any) -> str:
    if isinstance(found, str):
        return f"Not searched for held-out text in training: {found}."
    windows = min(each.windows_searched for each in found.sets.values())
    return f"No held-out text in the {windows:,} of {found.windows:,} training windows that were searched."


def _all_summaries(evaluation: Any) -> dict[str, Any]:
    found = {name: domain.summary.model_dump() for name, domain in evaluation.domains.items()}
    return {"overall": evaluation.overall.model_dump(), "domains": found, "protocol": evaluation.protocol.model_dump()}


def _show_status(run: Path, reference: Any, texts: Any, settings: Any, json_output: bool) -> None:
    from ectype.evaluate.follow import LandmarkLedger

    states = LandmarkLedger(run, reference, texts, settings).states()

    def show() -> None:
        table = plain_table("landmark", "state", numbers_from=0)
        for step, state in states.items():
            table.add_row(str(step), state)
        console().print(table)

    emit({"landmarks": {str(step): state for step, state in states.items()}}, json_output, show)


def _follow(run: Path, reference: Any, texts: Any, settings: Any, disjoint_windows: int, json_output: bool) -> None:
    from ectype.evaluate.follow import follow_run

    overall: dict[str, Any] = {}

    def evaluated(step: int, evaluation: Any) -> None:
        overall[str(step)] = evaluation.overall.model_dump()
        if not json_output:
            names = ("step", "targets", "loss", "reference", "difference", "KL mean", "KL p99", "top-1")
            cells = zip(names, landmark_row(step, evaluation), strict=True)
            print("  ".join(f"{name} {cell}" for name, cell in cells), flush=True)

    states = follow_run(
        run, reference, texts, settings, evaluated=evaluated, disjoint_windows=disjoint_windows
    )  # fmt: skip
    missing = [step for step, state in states.items() if state == "missing"]
    words = f"missing: {', '.join(map(str, missing))}" if missing else "all landmarks are evaluated"
    emit({"landmarks": overall, "missing": missing}, json_output, lambda: console().print(words))


def _evaluate_weights(path: Path, given: Given, compute: Literal["float32", "bfloat16"], json_output: bool) -> None:
    from ectype.errors import EctypeError
    from ectype.evaluate.engine import Settings
    from ectype.evaluate.stored_reference import is_stored_reference
    from ectype.evaluate.weights import (
        evaluate_against_stored,
        evaluate_weights,
        open_weights,
        store_reference,
        text_for,
    )
    from ectype.recipe.held_out_sets import named_sets

    sets, against, store = named_sets(given.get("held_out", ())), given.get("against"), given.get("store")
    stored = against if against is not None and is_stored_reference(against) else None
    if (stored is not None) == bool(sets) or (store is not None and (against is not None or len(sets) != 1)):
        raise EctypeError(
            f"{path} with {len(sets)} held-out sets", "one or more with --held-out; one to --store; none with a stored "
            "reference, which holds its text", "for example --held-out bundled",
        )  # fmt: skip
    if store is None:
        _refuse(given, ("top",), "without --store")
    settings = Settings(given.get("batch_windows", Settings.batch_windows), compute)
    with ProgressBar() as progress:
        ours = open_weights(path, settings)
        if stored is not None:
            found = {str(stored): evaluate_against_stored(ours, stored, settings, progress)}
        else:
            texts = {name: text_for(ours, each, given.get("tokenizer")) for name, each in sets.items()}
            if store is not None:
                (text,) = texts.values()
                tokens = store_reference(ours, text, given.get("top", 64), settings, store, progress)
                words = f"{store}: {tokens:,} tokens"
                emit({"stored": str(store), "tokens": tokens}, json_output, lambda: console().print(words))
                return
            reference = None if against is None else open_weights(against, settings)
            found = {name: evaluate_weights(ours, text, settings, reference, progress) for name, text in texts.items()}
    result = {"evaluations": {name: each.model_dump(mode="json") for name, each in found.items()}}

    def show() -> None:
        for name, each in found.items():
            show_domains(name, each)

    emit(result, json_output, show)


def _evaluate_tasks(
    path: Path, names: list[str], given: Given, compute: Literal["float32", "bfloat16"], json_output: bool
) -> None:
    from ectype.errors import EctypeError
    from ectype.run.paths import RunFolder
    from ectype.tasks.runner import TaskSettings, evaluate_run_tasks, evaluate_tasks

    if "tokenizer" not in given:
        raise EctypeError("--tasks without --tokenizer", "the run's tokenizer.json", "give --tokenizer FILE")
    separate = tuple(name for each in names for name in each.split(",") if name)
    options = {name: given[name] for name in ("tokenizer", *_OF_TASKS) if name in given}
    rows = given.get("batch_windows", TaskSettings.batch_rows)
    settings = TaskSettings(separate, batch_rows=rows, compute_dtype=compute, **options)
    if RunFolder(path).recipe.is_file():
        with ProgressBar() as progress:
            found = evaluate_run_tasks(path, settings, landmarks=given.get("landmark", ()), progress=progress)
        result = {"evaluations": {str(step): each.model_dump(mode="json") for step, each in found.items()}}
        emit(result, json_output, lambda: show_tasks({f"step {step}": each for step, each in found.items()}))
        return
    _refuse(given, ("landmark",), f"for {path}, which is no run")
    with ProgressBar() as progress:
        one = evaluate_tasks(path, settings, progress=progress)
    emit(one.model_dump(mode="json"), json_output, lambda: show_tasks({str(path): one}))
