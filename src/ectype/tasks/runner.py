"""Run tasks of lm-evaluation-harness on a run's checkpoints or on bare weights, one record per set of weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from ectype import __version__
from ectype.artifacts import sha256_of_json
from ectype.errors import EctypeError
from ectype.evaluate.sides import weights_sha256
from ectype.progress import Progress, silent
from ectype.recipe.spec import Dtype
from ectype.run.checkpoints import finished_steps
from ectype.run.goodput import GoodputLog
from ectype.run.manifest import load_run_recipe
from ectype.run.paths import RunFolder
from ectype.tasks.presets import chosen_tasks
from ectype.tasks.record import Metric, TaskEvaluation, TaskProtocol, TaskResult, merged, read_tasks, write_tasks

FEWSHOT_SEED = 1234
"""The harness's own default: which examples stand before a question, where a task draws them."""
_STANDARD_ERROR = "_stderr"


@dataclass(frozen=True)
class TaskSettings:
    """What to run and how. None leaves a choice to the task, the weights or the tokenizer."""

    names: tuple[str, ...]
    tokenizer: Path
    task_path: Path | None = None
    limit: int | None = None
    shots: int | None = None
    batch_rows: int = 8
    max_length: int | None = None
    compute_dtype: Dtype = "float32"
    split_weights: bool = False


def evaluate_run_tasks(
    run_dir: Path, settings: TaskSettings, *, landmarks: Sequence[int] = (), progress: Progress = silent
) -> dict[int, TaskEvaluation]:
    """Run tasks on a run's landmarks that are there, else on its newest checkpoint, or on those given.

    Each record is written as it is done; results of other tasks that it held under the same protocol stay.

    Raises:
        EctypeError: there is no such checkpoint, or the tasks can't be run.
    """
    finished, due = finished_steps(run_dir), load_run_recipe(run_dir).landmarks
    steps = tuple(sorted(set(landmarks))) or tuple(step for step in due if step in finished) or tuple(finished[-1:])
    absent = [step for step in steps if step not in finished]
    if absent or not steps:
        raise EctypeError(
            f"{run_dir} has no checkpoint of step {', '.join(map(str, absent))}".removesuffix(" of step "),
            f"one of {finished}" if finished else "a run that has saved a checkpoint",
            "let the run reach it, or name another with --landmark",
        )  # fmt: skip
    results = {}
    with GoodputLog(run_dir).spending("evaluation"):
        for step in steps:
            path = RunFolder(run_dir).task_evaluation(step)
            new = evaluate_tasks(RunFolder(run_dir).checkpoint(step), settings, progress=progress)
            if new.step not in (None, step):
                raise EctypeError(
                    f"{RunFolder(run_dir).checkpoint(step)} holds step {new.step}", f"step {step}",
                    "a checkpoint was moved or renamed: restore it",
                )  # fmt: skip
            results[step] = merged(_stored(path), new.model_copy(update={"step": step}))
            write_tasks(path, results[step])
    return results


def evaluate_tasks(path: Path, settings: TaskSettings, *, progress: Progress = silent) -> TaskEvaluation:
    """Run tasks on a checkpoint, a run's newest checkpoint or a Hugging Face folder; nothing is written.

    Raises:
        EctypeError: weights, tokenizer or tasks are not there, or the harness is not installed.
    """
    try:
        from ectype.tasks.harness import EctypeLM
    except ImportError as error:
        raise EctypeError(str(error), "the extra `tasks`", "pip install 'ectype[tasks]'") from None
    by_shots = chosen_tasks(settings.names, settings.shots)
    manager = _task_manager(settings, [name for names in by_shots.values() for name in names])
    model: Any = cast(Any, EctypeLM)(
        str(path), str(settings.tokenizer), batch_size=settings.batch_rows, max_length=settings.max_length,
        dtype=settings.compute_dtype, split_weights=settings.split_weights,
    )  # fmt: skip
    model.progress = progress
    results: dict[str, TaskResult] = {}
    for shots, names in by_shots.items():
        results |= task_results(_run_harness(model, manager, names, shots, settings.limit))
    return TaskEvaluation(step=model.subject.step, protocol=_protocol(model, settings), tasks=results)


def _task_manager(settings: TaskSettings, names: Sequence[str]) -> Any:
    """The harness's index of definitions, its own and those of `--task-path`."""
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports] - extra `tasks`

    if settings.task_path is not None and not settings.task_path.is_dir():
        raise EctypeError(f"no folder {settings.task_path}", "a folder with task definitions", "check --task-path")
    manager = TaskManager(include_path=None if settings.task_path is None else str(settings.task_path))
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        raise EctypeError(
            f"unknown task {', '.join(unknown)}", "tasks that lm-evaluation-harness or --task-path defines",
            "list them with `lm-eval ls tasks`",
        )  # fmt: skip
    return manager


def _run_harness(
    model: Any, manager: Any, names: Sequence[str], shots: int | None, limit: int | None
) -> Mapping[str, Any]:
    import lm_eval  # pyright: ignore[reportMissingImports] - extra `tasks`

    evaluate = cast(Any, lm_eval).simple_evaluate  # the harness's decorators hide its parameters
    try:
        found = evaluate(
            model=model, tasks=list(names), num_fewshot=shots, limit=limit, task_manager=manager, log_samples=False,
            fewshot_random_seed=FEWSHOT_SEED,
        )  # fmt: skip
    except OSError as error:  # also what its library of data sets raises: not found, no connection, offline
        raise EctypeError(
            f"{', '.join(names)}: {error}", "task items on this machine or within its reach",
            "check the connection, or define the tasks on local files and give --task-path",
        ) from error  # fmt: skip
    if found is None:
        raise AssertionError("one process alone always gets the results")
    return found


def task_results(found: Mapping[str, Any]) -> dict[str, TaskResult]:
    """The harness's results as records, groups included."""
    samples = {name: int(counts["effective"]) for name, counts in found["n-samples"].items()}
    results = {}
    for name, values in found["results"].items():
        members = found.get("group_subtasks", {}).get(name) or []
        leaves = _leaves(name, found.get("group_subtasks", {}))
        shots = {found["n-shot"].get(leaf) for leaf in leaves}
        metrics = _metrics(values, found["higher_is_better"].get(name) or {})
        if not metrics:
            continue  # a tag, or a group without a mean of its own
        results[name] = TaskResult(
            version=str(found["versions"].get(name)),
            definition_sha256=None if members else sha256_of_json(_plain(found["configs"].get(name))),
            shots=shots.pop() if len(shots) == 1 else None,
            items=sum(samples[leaf] for leaf in leaves),
            metrics=metrics,
        )
    return results


def _leaves(name: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks of a group, or the task itself."""
    members = groups.get(name) or []
    return [leaf for member in members for leaf in _leaves(member, groups)] if members else [name]


def _metrics(values: Mapping[str, Any], higher: Mapping[str, bool | None]) -> dict[str, Metric]:
    """`acc,none` and `acc_stderr,none` to one `acc`; a filter other than `none` stays in the name."""
    metrics = {}
    for key, value in values.items():
        name, _, filtered = key.partition(",")
        if not filtered or name.endswith(_STANDARD_ERROR) or not isinstance(value, int | float):
            continue
        metrics[name if filtered == "none" else key] = Metric(
            value=_number(value),
            standard_error=_number(values.get(f"{name}{_STANDARD_ERROR},{filtered}")),
            higher_is_better=higher.get(name),
        )
    return metrics


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """A configuration as JSON: what is no plain value is named by its type and its own name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return f"{type(value).__name__} {getattr(value, '__name__', '')}".strip()


def _protocol(model: Any, settings: TaskSettings) -> TaskProtocol:
    return TaskProtocol(
        harness=f"lm_eval {version('lm_eval')}",
        ectype=__version__,
        weights_sha256=weights_sha256(model.subject.path),
        tokenizer_sha256=model.text.sha256,
        max_length=model.settings.max_length,
        prefix_id=model.text.prefix_id,
        compute_dtype=settings.compute_dtype,
        vocabulary_rows=model.subject.model.vocab_size,
        limit=settings.limit,
        fewshot_seed=FEWSHOT_SEED,
    )


def _stored(path: Path) -> TaskEvaluation | None:
    """The record at `path`; a broken or older one is simply replaced."""
    try:
        return read_tasks(path)
    except EctypeError:
        return None
