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
    """Every number that parity judges by. In float32 all of the first three, and where logits are large, the fourth."""

    logit_difference_max: float = 1e-4
    kl_max: float = 1e-8
    top1_agreement: float = 1.0
    float32_rounding_ratio: float = 4.0
    """Logits further apart than `logit_difference_max` still agree within this multiple of the distance of
    transformers' float32 from its own float64, if no tensor parts on equal inputs. XLA's CPU products sum in one chain,
    torch's in blocks: per product, ours round 1.5 to 4 times as much as theirs on a real model."""
    bfloat16_kl_ratio: float = 1.1
    """Our KL to float32 over that of transformers' own bfloat16."""
    local_relative_error: float = 1e-4
    """Of one float32 product or layer on equal inputs; rounding stays a hundred times below. Names the fault."""


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
    reference_rounding_max: float | None = None
    """Largest |Δlogit| of transformers' float32 from its float64; measured where nothing else decides."""
    dtype: Dtype
    length_tokens: int
    window_tokens: int | None
    vocab_size: int
    layers: tuple[LayerDrift, ...]
    first_fault: Fault | None
    tolerances: Tolerances
    versions: dict[str, str]

    @property
    def logit_difference_limit(self) -> float:
        """What |Δlogit| may be in float32: the plain bound, or a multiple of the reference's own rounding."""
        rounding = self.reference_rounding_max or 0.0
        return max(self.tolerances.logit_difference_max, self.tolerances.float32_rounding_ratio * rounding)

    @property
    def within(self) -> bool:
        """Whether every figure keeps to its tolerance."""
        if self.dtype == "float32":
            return self._close_but_for_logits and (self.logit_difference_max or 0.0) <= self.logit_difference_limit
        if self.nan or self.kl_mean is None or self.reference_kl_mean is None:
            return False
        return self.kl_mean <= self.tolerances.bfloat16_kl_ratio * self.reference_kl_mean

    @property
    def needs_rounding(self) -> bool:
        """Whether |Δlogit| alone stands against agreement, so that the size of the reference's rounding decides."""
        return self.dtype == "float32" and self._close_but_for_logits and not self.within

    @property
    def _close_but_for_logits(self) -> bool:
        if self.nan or self.kl_max is None or self.top1_agreement is None or self.logit_difference_max is None:
            return False
        return self.kl_max <= self.tolerances.kl_max and self.top1_agreement >= self.tolerances.top1_agreement


def write_parity(run_dir: Path, record: ParityRecord) -> None:
    """Write `parity.json` of a run atomically."""
    write_json(RunFolder(run_dir).parity, record.model_dump(mode="json"))


def read_parity(run_dir: Path) -> ParityRecord:
    """Read `parity.json` of a run strictly.

    Raises:
        EctypeError: no such file, or none that this version writes.
    """
    return read_record(RunFolder(run_dir).parity, ParityRecord, "parity", COMMAND, f"measure again: `{COMMAND}`")
