"""The run to compare with: a folder whose `reference.json` names its weights, log, batches and held-out text."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ectype.artifacts import package_path, read_json
from ectype.errors import EctypeError
from ectype.recipe.held_out_sets import rooted
from ectype.recipe.parse import parse
from ectype.recipe.spec import Dtype, HeldOutSet, Recipe, Section

_FILE_NAME = "reference.json"
_MEND = "correct the fields named above; docs/reference-folder.md lists them, and the bundle is an example"
_NUMBERS = ("loss", "z_loss", "grad_norm", "learning_rate", "skipped")


class LandmarkWeights(Section):
    """The reference's weights after some number of updates."""

    weights: Path
    """A Hugging Face folder, an Ectype checkpoint, or a stored reference (`.npz`) in place of weights not at hand."""
    padded_rows: Path | None = None
    """Side file with the vocabulary rows that a Hugging Face export dropped."""


class Log(Section):
    """The reference's training log: a CSV file and the names of its columns (null: not logged)."""

    path: Path
    step: str = "step"
    loss: str = "loss"
    z_loss: str | None = None
    grad_norm: str | None = None
    learning_rate: str | None = None
    skipped: str | None = None


class HeldOut(Section):
    """Text that the run never trained on: headerless token files by domain, and how they are cut."""

    dtype: Literal["uint8", "uint16", "uint32"]
    domains: Annotated[dict[str, Path], Field(min_length=1)]
    remainder: Literal["drop", "score"] = "drop"
    """What becomes of the tokens behind the last whole window: `drop` leaves them out (OLMo-core)."""

    @property
    def as_set(self) -> HeldOutSet:
        """The same as any other set."""
        return HeldOutSet(tokens=self.domains, dtype=self.dtype, remainder=self.remainder)


class Reference(Section):
    """A published run, as far as it is published. All paths are absolute after `load_reference`."""

    format: Literal[1]
    name: str
    framework: str
    """What made it, in words."""
    dtype: Dtype | None = None
    """Element type of its parameters and its compute; null when unknown, and then no float32 floor applies."""
    landmarks: Annotated[dict[Annotated[int, Field(ge=0)], LandmarkWeights], Field(min_length=1)]
    log: Log | None = None
    batches: Path | None = None
    """JSON list of {"step", "index": window ids in order} for each update."""
    held_out: HeldOut
    """What a verdict is reached on."""
    sets: dict[str, HeldOutSet] = Field(default_factory=dict)
    """Further held-out text by name, measured beside it."""
    tokenizer: Path | None = None
    """`tokenizer.json`, for bits per byte and for documents."""
    noise: Path | None = None
    """Noise record that our own twins of this run made (`ectype compare --write-noise`)."""


@dataclass(frozen=True)
class TrainingLog:
    """Per-step series, one entry per logged step in ascending order; a series that was not logged is None.

    `steps` is int64, 1-based; the others are float64, with NaN where the log holds no number.
    """

    steps: np.ndarray
    loss: np.ndarray
    z_loss: np.ndarray | None = None
    grad_norm: np.ndarray | None = None
    learning_rate: np.ndarray | None = None
    skipped: np.ndarray | None = None
    aggregated_rows: int = 0
    """Rows that held the mean of several steps, or of several runs, and were left out."""


def load_reference(path: str | Path) -> Reference:
    """Read the reference in folder `path` (or at a JSON file; `package:` names a shipped one).

    Raises:
        EctypeError: no such file, an unknown key, or a file that it names is absent.
    """
    location = package_path(str(path))
    file = location / _FILE_NAME if location.is_dir() else location
    if not file.is_file():
        raise EctypeError(
            f"reference: no file {file}", f"a folder that holds {_FILE_NAME}, or package:demo/bundle", "check the path"
        )
    reference = parse(Reference, read_json(file, "reference"), f"reference {file}", mend=_MEND)
    resolved = Reference.model_validate(rooted(reference.model_dump(), file.parent))
    absent = [str(named) for named in paths_in(resolved.model_dump()) if not named.exists()]
    if absent:
        raise EctypeError(
            f"reference {file} names absent files: {', '.join(absent)}",
            "every named file present",
            "restore the files, or set optional ones to null",
        )
    return resolved


def named_reference(recipe: Recipe, name: str | None = None) -> Reference:
    """The reference `name`, else the one that the recipe names.

    Raises:
        EctypeError: neither is there, or as for `load_reference`.
    """
    chosen = name or recipe.inputs.reference
    if chosen is None:
        raise EctypeError("no reference given, and the recipe names none", "--reference FOLDER", "name its folder")
    return load_reference(chosen)


def paths_in(value: Any) -> list[Path]:
    """Every path in nested dictionaries, as a record's `model_dump` gives them."""
    if isinstance(value, dict):
        return [path for entry in value.values() for path in paths_in(entry)]
    return [value] if isinstance(value, Path) else []


_NOTHING = {"", "nan", "+nan", "-nan", "null", "none", "na", "n/a"}
"""Cells, in small letters, that hold no number and mean it."""
COLUMNS_MEND = "correct the column names under `log` in the reference"


def read_training_log(log: Log, mend: str = COLUMNS_MEND) -> TrainingLog:
    """Read the per-step series of a reference; of rows with one step number the last counts.

    A column may stand in the file under its name in other capitals, or behind the name of a run (`run - name`), as W&B
    exports it. A row whose `__MIN` and `__MAX` differ is the mean of several steps or runs, and is left out.

    Args:
        mend: what to do about a column that is not there.

    Raises:
        EctypeError: a named column is absent or stands there for several runs, a step is no whole number, a cell holds
            words, or the file has no rows of single steps.
    """
    named = {name: getattr(log, name) for name in ("step", *_NUMBERS) if getattr(log, name) is not None}
    try:
        with log.path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            header = reader.fieldnames or []
            columns = {name: _column(log.path, wanted, header, mend) for name, wanted in named.items()}
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EctypeError(f"log {log.path}: {error}", "a readable CSV file", "check the path") from None
    if any(None in row for row in rows):
        raise EctypeError(
            f"log {log.path} has rows of more cells than its {len(header)} columns", "as many cells as columns",
            "export it with points for decimals, or quote cells that hold commas",
        )  # fmt: skip
    single = [row for row in rows if not _is_aggregated(row, columns["loss"])]
    if not single:
        found = f"{len(rows)} rows, each a mean of several steps or runs" if rows else "no rows"
        raise EctypeError(f"log {log.path} has {found}", "one row per step", "export the full history of one run")
    by_step = {_step_number(row[columns["step"]], log.path): row for row in single}
    steps = sorted(by_step)
    series = {
        name: np.array([_cell(by_step[step][column], log.path, column, step) for step in steps], np.float64)
        for name, column in columns.items()
        if name != "step"
    }
    return TrainingLog(steps=np.array(steps, np.int64), aggregated_rows=len(rows) - len(single), **series)


def _column(path: Path, wanted: str, header: Sequence[str], mend: str) -> str:
    """The column of the file that `wanted` means."""
    if header.count(wanted) > 1:
        raise EctypeError(f"log {path} has {header.count(wanted)} columns {wanted!r}", "each name once", "rename one")
    if wanted in header:
        return wanted
    plain = [column for column in header if not column.endswith(("__MIN", "__MAX"))]
    alike = [column for column in plain if column.casefold().rpartition(" - ")[2] == wanted.casefold()]
    if len(alike) == 1:
        return alike[0]
    found = f"has {len(alike)} columns for {wanted!r}: {', '.join(alike)}" if alike else f"has no column {wanted!r}"
    raise EctypeError(f"log {path} {found}", f"one of its columns: {', '.join(plain)}", mend)


def _is_aggregated(row: Mapping[str, str | None], loss: str) -> bool:
    lowest, highest = (_number(row.get(f"{loss}{end}")) for end in ("__MIN", "__MAX"))
    return lowest < highest


def _step_number(text: str | None, path: Path) -> int:
    value = _number(text)
    if not 0 <= value < 1 << 53 or value != int(value):
        raise EctypeError(f"log {path}: step {text!r}", "a whole number in every row", "correct the step column")
    return int(value)


def _cell(text: str | None, path: Path, column: str, step: int) -> float:
    """The number in a cell; NaN where nothing was logged."""
    value, words = _number(text), (text or "").strip()
    if math.isnan(value) and words.lower() not in _NOTHING:
        raise EctypeError(
            f"log {path}: {column} of step {step} is {words!r}", "a number, NaN or an empty cell", "correct the column"
        )
    return value


def _number(text: str | None) -> float:
    """The number in a cell; NaN for an empty or unreadable one. W&B writes booleans as words."""
    words = {"true": 1.0, "false": 0.0}
    cell = (text or "").strip()
    try:
        return words[cell.lower()] if cell.lower() in words else float(cell)
    except ValueError:
        return math.nan


def read_batches(path: Path) -> dict[int, np.ndarray]:
    """Step (1-based) -> window ids of its global batch, int64 [windows], in order.

    Raises:
        EctypeError: an entry lacks `step` or `index`, or a step is named twice.
    """
    entries = read_json(path, "reference batches")
    try:
        batches = {int(entry["step"]): np.array(entry["index"], np.int64) for entry in entries}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EctypeError(
            f"reference batches {path}: {error!r}", 'entries {"step": n, "index": [ids]}', "write the file anew"
        ) from None
    if len(batches) != len(entries):
        raise EctypeError(f"reference batches {path} names a step twice", "one entry per step", "write the file anew")
    for step, ids in batches.items():
        # A larger id would be compared by its low 32 bits alone.
        if ids.ndim != 1 or ((ids < 0) | (ids >= 1 << 32)).any():
            raise EctypeError(
                f"reference batches {path}: step {step} has ids of no window", "one row of ids from 0 to 2^32 - 1",
                "write the file anew",
            )  # fmt: skip
    return batches
