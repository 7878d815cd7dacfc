"""The record of a parity measurement: what `ectype weights parity` prints, and `parity.json` in a run folder."""

from pathlib import Path
from typing import Literal

from ectype.artifacts import write_json
from ectype.recipe.parse import read_record
from ectype.recipe.spec import Dtype, Section
from ectype.run.paths import RunFolder

COMMAND = "ectype weights parity RUN HF_DIR"
"""Writes the record."""


class Tolerances(Section):
    """float32: absolute bounds. bfloat16: our KL may be this multiple of Hugging Face's own bfloat16 KL."""

    logit_difference_max: float = 1e-4
    kl_max: float = 1e-8
    top1_agreement: float = 1.0
    bfloat16_kl_ratio: float = 1.1


class Fault(Section):
    """Where the two first part on equal inputs. `tensors` are tree paths within the layer."""

    layer: int | None
    group: str
    tensors: tuple[str, ...]
    relative_error: float | None


class LayerDrift(Section):
    """How far the hidden states lie apart behind one layer; null when not finite."""

    layer: int
    relative_error: float | None
    difference_max: float | None


class ParityRecord(Section):
    """Our logits beside those of transformers. A figure that NaN spoils is null, and `nan` says so."""

    format: Literal[1] = 1
    same: bool
    positions: int
    nan: bool
    kl_mean: float | None
    """KL(transformers || ours), nats per token."""
    kl_p99: float | None
    kl_max: float | None
    logit_difference_max: float | None
    logit_difference_mean: float | None
    top1_agreement: float | None
    reference_kl_mean: float | None
    """Of transformers' own computation in the same lower element type; null in float32."""
    dtype: Dtype
    length_tokens: int
    window_tokens: int | None
    vocab_size: int
    layers: tuple[LayerDrift, ...]
    first_fault: Fault | None
    tolerances: Tolerances
    versions: dict[str, str]


def write_parity(run_dir: Path, record: ParityRecord) -> None:
    """Write `parity.json` of a run atomically."""
    write_json(RunFolder(run_dir).parity, record.model_dump(mode="json"))


def read_parity(run_dir: Path) -> ParityRecord:
    """Read `parity.json` of a run strictly.

    Raises:
        EctypeError: no such file, or none that this version writes.
    """
    return read_record(RunFolder(run_dir).parity, ParityRecord, "parity", COMMAND, f"measure again: `{COMMAND}`")
