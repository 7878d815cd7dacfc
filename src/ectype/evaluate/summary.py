"""From per-token measures to the sums, means and quantiles of a record. Arrays in, records out.

Shapes: N windows, P predictions of a window (its length less one), M scored targets of a domain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ectype.evaluate.record import DomainEvaluation, Histogram, Pair, Summary, WindowSums, number, numbers

_LOG10_LOWEST = -14.0
_LOG10_HIGHEST = 2.0
_BINS_PER_DECADE = 10


@dataclass(frozen=True)
class DomainMeasures:
    """Per-token measures of a domain, reduced as far as means, quantiles and the bootstrap allow.

    `window_sums` maps each measure to float64 [N]; `kl` holds float32 [M]; `bytes` is None without a tokenizer.
    """

    targets: np.ndarray
    window_sums: Mapping[str, np.ndarray]
    kl: np.ndarray
    bytes: int | None
    nonfinite: tuple[int, int]


def reduce_measures(
    measures: Mapping[str, np.ndarray], mask_NP: np.ndarray, target_bytes_NP: np.ndarray | None
) -> DomainMeasures:
    """Reduce the float32 [N, P] measures of a batch of windows to float64 sums over its scored targets."""
    sums = {
        name: np.asarray(np.sum(values, axis=1, where=mask_NP, dtype=np.float64)) for name, values in measures.items()
    }
    nonfinite = [int(np.sum(~np.isfinite(measures[name]) & mask_NP)) for name in ("loss", "reference_loss")]
    return DomainMeasures(
        targets=mask_NP.sum(axis=1),
        window_sums=sums,
        kl=np.asarray(measures["kl"])[mask_NP],
        bytes=None if target_bytes_NP is None else int(target_bytes_NP[mask_NP].sum()),
        nonfinite=(nonfinite[0], nonfinite[1]),
    )


def join_measures(parts: Sequence[DomainMeasures]) -> DomainMeasures:
    """The measures of several batches, or of several domains, as one."""
    byte_counts = [part.bytes for part in parts if part.bytes is not None]
    return DomainMeasures(
        targets=np.concatenate([part.targets for part in parts]),
        window_sums={name: np.concatenate([part.window_sums[name] for part in parts]) for name in parts[0].window_sums},
        kl=np.concatenate([part.kl for part in parts]),
        bytes=sum(byte_counts) if len(byte_counts) == len(parts) else None,
        nonfinite=(sum(part.nonfinite[0] for part in parts), sum(part.nonfinite[1] for part in parts)),
    )


def summarise(measures: DomainMeasures) -> Summary:
    """Means over all targets, quantiles of the per-token KL (linear interpolation), and what follows from them."""
    targets = int(measures.targets.sum())
    totals = {name: float(sums.sum()) for name, sums in measures.window_sums.items()}
    mean = {name: total / targets for name, total in totals.items()}
    median, p99, largest = np.quantile(measures.kl.astype(np.float64), (0.5, 0.99, 1.0))
    with np.errstate(over="ignore"):
        perplexity = [float(np.exp(mean[name])) for name in ("loss", "reference_loss")]
    return Summary(
        targets=targets,
        bytes=measures.bytes,
        loss=_pair(mean["loss"], mean["reference_loss"]),
        loss_all_rows=_pair(mean["loss_all_rows"], mean["reference_loss_all_rows"]),
        perplexity=_pair(*perplexity),
        bits_per_byte=Pair(
            ours=_bits_per_byte(totals["loss"], measures.bytes),
            reference=_bits_per_byte(totals["reference_loss"], measures.bytes),
        ),
        kl_mean=number(mean["kl"]),
        kl_median=number(float(median)),
        kl_p99=number(float(p99)),
        kl_max=number(float(largest)),
        top1_agreement=number(mean["agree"]),
        nonfinite_targets=_pair(*measures.nonfinite),
    )


def domain_record(measures: DomainMeasures) -> DomainEvaluation:
    """The record of one domain: its summary, its per-window sums and the histogram of its KL."""
    sums = measures.window_sums
    return DomainEvaluation(
        summary=summarise(measures),
        windows=WindowSums(
            targets=tuple(measures.targets.tolist()),
            **{name: numbers(sums[name]) for name in ("loss", "reference_loss", "kl", "agree")},
        ),
        kl_histogram=kl_histogram(measures.kl),
    )


def kl_histogram(kl_M: np.ndarray) -> Histogram:
    """Counts in tenths of a decade from 1e-14 to 1e2 nats; zero falls in the lowest bin, NaN in none."""
    bins = round((_LOG10_HIGHEST - _LOG10_LOWEST) * _BINS_PER_DECADE)
    finite = kl_M[np.isfinite(kl_M)].astype(np.float64)
    position = (np.log10(np.maximum(finite, 10.0**_LOG10_LOWEST)) - _LOG10_LOWEST) * _BINS_PER_DECADE
    counts = np.bincount(np.clip(position.astype(np.int64), 0, bins - 1), minlength=bins)
    return Histogram(log10_lowest=_LOG10_LOWEST, bins_per_decade=_BINS_PER_DECADE, counts=tuple(counts.tolist()))


def _pair(ours: float, reference: float) -> Pair:
    return Pair(ours=number(ours), reference=number(reference))


def _bits_per_byte(loss_nats: float, text_bytes: int | None) -> float | None:
    """Bits of the whole text over its bytes; targets without bytes (special tokens) still cost bits."""
    return number(loss_nats / (np.log(2) * text_bytes)) if text_bytes else None
