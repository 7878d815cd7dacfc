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

Number = float | None


class Protocol(Section):
    """How the numbers came about; two evaluations compare only when theirs are equal."""

    window_tokens: int
    windows: str = "fixed, non-overlapping, documents as stored"
    scored: str = "every token of a window but its first"
    remainder: Literal["drop", "score"]
    vocabulary_rows: int
    all_rows: tuple[int, int]
    """Trained rows of ours and of the reference, behind the `_all_rows` losses."""
    compute_dtype: Dtype
    softmax: str = "float32"
    accumulation: str = "float64"
    kl: str = "KL(reference || ours) over vocabulary_rows, nats per token"


class InputHashes(Section):
    """Content hashes (SHA-256) of everything that the numbers depend on."""

    ours: str
    reference: str
    reference_padded_rows: str | None
    held_out: dict[str, str]
    tokenizer: str | None
    ectype: str


class Pair(Section):
    """One number for our model and one for the reference."""

    ours: Number
    reference: Number


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
    kl_median: Number
    kl_p99: Number
    kl_max: Number
    top1_agreement: Number
    nonfinite_targets: Pair
    """Targets whose loss is NaN or infinite."""


class WindowSums(Section):
    """Sums over the targets of each window, in order, for pairing and for the bootstrap."""

    targets: tuple[int, ...]
    loss: tuple[Number, ...]
    reference_loss: tuple[Number, ...]
    kl: tuple[Number, ...]
    agree: tuple[Number, ...]


class Histogram(Section):
    """Counts of per-token KL in bins of equal width in log10, the outermost open-ended."""

    log10_lowest: float
    bins_per_decade: int
    counts: tuple[int, ...]


class DomainEvaluation(Section):
    """One held-out domain."""

    summary: Summary
    windows: WindowSums
    kl_histogram: Histogram


class Evaluation(Section):
    """One landmark: our weights against the reference's on the same tokens."""

    format: Literal[1] = 1
    step: int
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
