"""From per-token measures to the sums, means and quantiles of a record. Arrays in, records out.

Shapes: N rows, P predictions of a row, M scored targets, U units: documents, or windows where those are not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ectype.evaluate.distribution import Distribution, distribution, merged
from ectype.evaluate.record import DomainEvaluation, Histogram, Number, Pair, Summary, UnitSums, number, numbers

_LOG10_LOWEST = -14.0
_LOG10_HIGHEST = 2.0
_BINS_PER_DECADE = 10
_SUMS = ("loss", "reference_loss", "kl", "agree", "kl_upper")


@dataclass(frozen=True)
class DomainMeasures:
    """Per-token measures of a domain, reduced as far as means, quantiles and the bootstrap allow.

    `sums` maps each measure to float64 [U]. Without a reference it holds the losses of one side and `kl` nothing.
    `bytes` is None without a tokenizer.
    """

    units: np.ndarray
    """Their numbers, ascending."""
    targets: np.ndarray
    sums: Mapping[str, np.ndarray]
    kl: Distribution
    bytes: int | None
    nonfinite: tuple[int, int]


def reduce_measures(
    measures: Mapping[str, np.ndarray],
    scored_NP: np.ndarray,
    text_bytes_N: np.ndarray | None,
    units_N: np.ndarray | None = None,
) -> DomainMeasures:
    """Reduce the float32 [N, P] measures of some rows to float64 sums over the scored targets of each unit.

    Args:
        text_bytes_N: UTF-8 bytes of what each row scores.
        units_N: ascending; None: every row is one.
    """
    units, firsts = np.unique(np.arange(len(scored_NP)) if units_N is None else units_N, return_index=True)

    def by_unit(values_NP: np.ndarray) -> np.ndarray:
        rows = np.asarray(np.sum(values_NP, axis=1, where=scored_NP, dtype=np.float64))
        return np.add.reduceat(rows, firsts) if len(rows) else rows

    nonfinite = [
        int(np.sum(~np.isfinite(measures[name]) & scored_NP)) if name in measures else 0
        for name in ("loss", "reference_loss")
    ]
    return DomainMeasures(
        units=units,
        targets=by_unit(np.ones(scored_NP.shape)).astype(np.int64),
        sums={name: by_unit(values) for name, values in measures.items()},
        kl=distribution(np.asarray(measures["kl"])[scored_NP] if "kl" in measures else np.empty(0)),
        bytes=None if text_bytes_N is None else int(text_bytes_N.sum()),
        nonfinite=(nonfinite[0], nonfinite[1]),
    )


def join_measures(parts: Sequence[DomainMeasures], units_continue: bool = False) -> DomainMeasures:
    """The measures of several batches, or of several domains, as one.

    Args:
        units_continue: parts follow one another in a stream, where a unit may begin in one and end in the next.
    """
    byte_counts = [part.bytes for part in parts if part.bytes is not None]
    units, targets = (np.concatenate([getattr(part, name) for part in parts]) for name in ("units", "targets"))
    sums = {name: np.concatenate([part.sums[name] for part in parts]) for name in parts[0].sums}
    if units_continue and len(units):
        firsts = np.flatnonzero(np.diff(units, prepend=units[0] - 1))
        units, targets = units[firsts], np.add.reduceat(targets, firsts)
        sums = {name: np.add.reduceat(values, firsts) for name, values in sums.items()}
    return DomainMeasures(
        units=units,
        targets=targets,
        sums=sums,
        kl=merged([part.kl for part in parts]),
        bytes=sum(byte_counts) if len(byte_counts) == len(parts) else None,
        nonfinite=(sum(part.nonfinite[0] for part in parts), sum(part.nonfinite[1] for part in parts)),
    )


def summarise(measures: DomainMeasures) -> Summary:
    """Means over all targets, quantiles of the per-token KL (linear interpolation), and what follows from them."""
    targets = int(measures.targets.sum())
    totals = {name: float(values.sum()) for name, values in measures.sums.items()}
    mean = {name: total / targets for name, total in totals.items()}
    median, p99 = measures.kl.quantiles((0.5, 0.99))
    with np.errstate(over="ignore"):
        perplexity = {name: float(np.exp(value)) for name, value in mean.items()}
    bits = {name: _bits_per_byte(total, measures.bytes) for name, total in totals.items()}
    return Summary(
        targets=targets,
        bytes=measures.bytes,
        loss=_pair(mean, "loss"),
        loss_all_rows=_pair(mean, "loss_all_rows"),
        perplexity=_pair(perplexity, "loss"),
        bits_per_byte=_pair(bits, "loss"),
        kl_mean=_number(mean.get("kl")),
        kl_median=number(median),
        kl_p99=number(p99),
        kl_max=number(measures.kl.largest),
        kl_upper_mean=_number(mean.get("kl_upper")),
        tail_mass_mean=_number(mean.get("tail_mass")),
        top1_agreement=_number(mean.get("agree")),
        nonfinite_targets=Pair(ours=measures.nonfinite[0], reference=measures.nonfinite[1]),
    )


def domain_record(measures: DomainMeasures) -> DomainEvaluation:
    """The record of one domain: its summary, its per-unit sums and the histogram of its KL."""
    return DomainEvaluation(
        summary=summarise(measures),
        windows=UnitSums(
            targets=tuple(measures.targets.tolist()),
            **{name: numbers(measures.sums[name]) if name in measures.sums else () for name in _SUMS},
        ),
        kl_histogram=kl_histogram(measures.kl),
    )


def kl_histogram(kl: Distribution) -> Histogram:
    """Counts in tenths of a decade from 1e-14 to 1e2 nats; zero falls in the lowest bin, NaN in none."""
    bins = round((_LOG10_HIGHEST - _LOG10_LOWEST) * _BINS_PER_DECADE)
    finite = np.isfinite(kl.values)
    values = kl.values[finite].astype(np.float64)
    position = (np.log10(np.maximum(values, 10.0**_LOG10_LOWEST)) - _LOG10_LOWEST) * _BINS_PER_DECADE
    counts = np.bincount(np.clip(position.astype(np.int64), 0, bins - 1), kl.counts[finite], minlength=bins)
    return Histogram(
        log10_lowest=_LOG10_LOWEST, bins_per_decade=_BINS_PER_DECADE, counts=tuple(counts.astype(int).tolist())
    )


def _pair(values: Mapping[str, float | None], name: str) -> Pair:
    return Pair(ours=_number(values.get(name)), reference=_number(values.get(f"reference_{name}")))


def _number(value: float | None) -> Number:
    return None if value is None else number(value)


def _bits_per_byte(loss_nats: float, text_bytes: int | None) -> float | None:
    """Bits of the whole text over its bytes; targets without bytes (special tokens) still cost bits."""
    return number(loss_nats / (np.log(2) * text_bytes)) if text_bytes else None
