"""The record of downstream tasks on one set of weights."""

from pathlib import Path
from typing import Literal

from ectype.artifacts import write_json
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Dtype, Section

Number = float | None


class TaskProtocol(Section):
    """What all results of a record share; results of another protocol are never mixed into it."""

    harness: str
    """Name and version of what wrote the prompts and counted the answers."""
    ectype: str
    weights_sha256: str
    tokenizer_sha256: str
    max_length: int
    prefix_id: int
    """Stands before texts without context."""
    compute_dtype: Dtype
    softmax: str = "float32"
    accumulation: str = "float64"
    vocabulary_rows: int
    limit: int | None
    """First so many items of each task; null: all."""
    fewshot_seed: int


class Metric(Section):
    """One number of a task; its standard error is null where the harness states none."""

    value: Number
    standard_error: Number
    higher_is_better: bool | None


class TaskResult(Section):
    """One task, or the mean over a group of tasks."""

    version: str
    """Of the task's definition, as it states it."""
    definition_sha256: str | None
    """Of the task's resolved configuration; null for a group."""
    shots: int | None
    """Solved examples before each question; null for a group whose tasks differ."""
    items: int
    metrics: dict[str, Metric]
    """By the harness's names, `metric` or `metric,filter` for any filter but `none`."""


class TaskEvaluation(Section):
    """Downstream tasks on one set of weights."""

    format: Literal[1] = 1
    step: int | None
    protocol: TaskProtocol
    tasks: dict[str, TaskResult]


def merged(stored: TaskEvaluation | None, new: TaskEvaluation) -> TaskEvaluation:
    """`new`, with the results of `stored` for other tasks where both have one protocol."""
    if stored is None or (stored.step, stored.protocol) != (new.step, new.protocol):
        return new
    return new.model_copy(update={"tasks": stored.tasks | new.tasks})


def write_tasks(path: Path, evaluation: TaskEvaluation) -> None:
    """Write the record atomically."""
    write_json(path, evaluation.model_dump(mode="json"))


def read_tasks(path: Path) -> TaskEvaluation:
    """Read a record strictly.

    Raises:
        EctypeError: no such file, or its content is no record of this format.
    """
    return read_record(
        path, TaskEvaluation, "task record", "ectype evaluate --tasks", "delete the file and evaluate again"
    )
