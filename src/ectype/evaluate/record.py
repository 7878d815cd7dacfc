"""The record of one landmark's evaluation.

A number that is not finite is null, and turns back into NaN wherever arithmetic is done with it.
"""

import math
from pathlib import Path
from typing import Literal

import numpy as np

from ectype.artifacts import write_json
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Dtype, Section
from ectype.run.paths import RunFolder

Number = float | None


class Protocol(Section):
    """How the numbers came about; two evaluations compare only when theirs are equal."""

    window_tokens: int
    windows: str = "fixed, non-overlapping, documents as stored"
    scored: str = "every token of a window but its first"
    stride_tokens: int | None = None
    """New tokens of each rolling window; null for fixed windows."""
    prefix_id: int | None = None
    """The token before a text, behind which its first one is scored; null: the first token is context alone."""
    remainder: Literal["drop", "score"]
    units: Literal["windows", "documents"] = "windows"
    """What the sums of a record are over, and the bootstrap draws."""
    vocabulary_rows: int
    all_rows: tuple[int, ...]
    """Trained rows of ours and of the reference, behind the `_all_rows` losses."""
    compute_dtype: Dtype
    softmax: str = "float32"
    accumulation: str = "float64"
    kl: str = "KL(reference || ours) over vocabulary_rows, nats per token"
    top_ids: int | None = None
    """The reference's most probable ids that its stored record holds; null: all, and the KL is no bound."""


class InputHashes(Section):
    """Content hashes (SHA-256) of everything that the numbers depend on."""

    ours: str
    reference: str | None
    """Null where one model was measured alone."""
    reference_padded_rows: str | None
    held_out: dict[str, str]
    tokenizer: str | None
    ectype: str


class Pair(Section):
    """One number for our model and one for the reference."""

    ours: Number
    reference: Number

    @property
    def difference(self) -> Number:
        """Ours less the reference; null where either is."""
        return None if self.ours is None or self.reference is None else self.ours - self.reference


class Summary(Section):
    """Means weigh every target alike, whatever its window or domain."""

    targets: int
    bytes: int | None
    """UTF-8 bytes of the targets; special tokens are none. Null without a tokenizer."""
    loss: Pair
    """Nats per token over the real vocabulary rows."""
    loss_all_rows: Pair
    """Nats per token over every trained row: the loss that training saw."""
    perplexity: Pair
    bits_per_byte: Pair
    kl_mean: Number
    """Against a stored record of `top_ids`, a lower bound: the ids beyond them count as one."""
    kl_median: Number
    """Within 2.5e-4 of itself where a text has more than 2^18 distinct values, else exact; so is the next."""
    kl_p99: Number
    kl_max: Number
    kl_upper_mean: Number = None
    """Against a stored record, an upper bound on the mean KL."""
    tail_mass_mean: Number = None
    """Against a stored record, what the reference gave to ids beyond `top_ids`."""
    top1_agreement: Number
    nonfinite_targets: Pair
    """Targets whose loss is NaN or infinite."""


class UnitSums(Section):
    """Sums over the targets of each window, or document, in order, for pairing and for the bootstrap.

    What needs a reference is empty without one.
    """

    targets: tuple[int, ...]
    loss: tuple[Number, ...]
    reference_loss: tuple[Number, ...]
    kl: tuple[Number, ...]
    """Against a stored record of `top_ids`, lower bounds."""
    agree: tuple[Number, ...]
    kl_upper: tuple[Number, ...] = ()
    """Against a stored record, upper bounds; empty otherwise, and in records of versions that kept none."""


class Histogram(Section):
    """Counts of per-token KL in bins of equal width in log10, the outermost open-ended."""

    log10_lowest: float
    bins_per_decade: int
    counts: tuple[int, ...]


class DomainEvaluation(Section):
    """One held-out domain."""

    summary: Summary
    windows: UnitSums
    kl_histogram: Histogram


class Evaluation(Section):
    """One set of weights, or two of them, on the same tokens: a landmark of a run, or any checkpoints."""

    format: Literal[1] = 1
    step: int | None
    protocol: Protocol
    inputs: InputHashes
    overall: Summary
    domains: dict[str, DomainEvaluation]


def number(value: float) -> Number:
    """A float for JSON: null when it is not finite."""
    return float(value) if math.isfinite(value) else None


def numbers(values: np.ndarray) -> tuple[Number, ...]:
    """Floats for JSON, null where they are not finite."""
    return tuple(number(value) for value in values.tolist())


def array(values: tuple[Number, ...]) -> np.ndarray:
    """float64 array of a record's numbers, NaN where null."""
    return np.array([math.nan if value is None else value for value in values], np.float64)


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write the record atomically."""
    write_json(path, evaluation.model_dump(mode="json"))


def read_evaluation(path: Path) -> Evaluation:
    """Read a record strictly.

    Raises:
        EctypeError: no such file, or its content is no evaluation of this format.
    """
    return read_record(path, Evaluation, "evaluation", "ectype evaluate", "delete the file and evaluate again")


def read_evaluations(run_dir: Path) -> dict[int, Evaluation]:
    """All of a run's landmarks by step. Errors as for `read_evaluation`."""
    found = [read_evaluation(path) for path in RunFolder(run_dir).evaluations()]
    return {evaluation.step: evaluation for evaluation in found if evaluation.step is not None}
