"""Sums, means and quantiles of a record."""

import math

import numpy as np
import pytest

from ectype.evaluate.distribution import distribution
from ectype.evaluate.summary import (
    DomainMeasures,
    domain_record,
    join_measures,
    kl_histogram,
    reduce_measures,
    summarise,
)

NAMES = ("loss", "loss_all_rows", "reference_loss", "reference_loss_all_rows", "kl", "agree")


def measures(value: float, mask: list[list[bool]], text_bytes: int | None = 5) -> DomainMeasures:
    mask_NP = np.array(mask)
    values = {name: np.full(mask_NP.shape, value, np.float32) for name in NAMES}
    row_bytes = None if text_bytes is None else text_bytes * mask_NP.sum(axis=1)
    return reduce_measures(values, mask_NP, row_bytes)


def test_domains_weigh_by_their_targets_not_by_their_number() -> None:
    # Loss 2 over one token and 90 over nine (C34): the mean of means would be 6.0, the right answer is 9.2.
    joined = join_measures([measures(2.0, [[True, False]]), measures(10.0, [[True] * 5, [True] * 4 + [False]])])
    assert summarise(joined).loss.ours == pytest.approx(9.2)


def test_masked_targets_count_nowhere() -> None:
    summary = summarise(measures(2.0, [[True, False], [True, True]]))
    assert (summary.targets, summary.bytes, summary.loss.ours) == (3, 15, 2.0)


def test_bits_per_byte_and_perplexity_follow_from_the_sums() -> None:
    summary = summarise(measures(2.0, [[True, True]]))
    assert summary.bits_per_byte.ours == pytest.approx(4.0 / math.log(2) / 10)
    assert summary.perplexity.reference == pytest.approx(math.exp(2.0))


def test_without_a_tokenizer_there_are_no_bits_per_byte() -> None:
    summary = summarise(measures(2.0, [[True, True]], None))
    assert (summary.bytes, summary.bits_per_byte.ours) == (None, None)


def test_quantiles_are_over_tokens() -> None:
    kl = np.random.default_rng(0).gamma(1.0, 1e-9, (10, 1000)).astype(np.float32)
    values = dict.fromkeys(NAMES, kl)
    summary = summarise(reduce_measures(values, np.ones(kl.shape, bool), None))
    assert summary.kl_median == pytest.approx(float(np.median(kl.astype(np.float64))), rel=1e-12)
    assert summary.kl_p99 == pytest.approx(float(np.quantile(kl.astype(np.float64), 0.99)), rel=1e-12)
    assert summary.kl_max == float(kl.max())
    assert summary.kl_mean == pytest.approx(float(kl.astype(np.float64).mean()), rel=1e-12)


def test_sums_are_float64() -> None:
    values = {name: np.full((1, 2**20), 0.1, np.float32) for name in NAMES}
    summary = summarise(reduce_measures(values, np.ones((1, 2**20), bool), None))
    assert summary.loss.ours == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_what_is_not_finite_is_null_and_counted() -> None:
    values = {name: np.ones((2, 3), np.float32) for name in NAMES}
    values["loss"] = np.array([[1, np.nan, np.inf], [1, 1, 1]], np.float32)
    record = domain_record(reduce_measures(values, np.ones((2, 3), bool), None))
    assert record.summary.loss.ours is None
    assert record.summary.loss.reference == 1.0
    assert (record.summary.nonfinite_targets.ours, record.summary.nonfinite_targets.reference) == (2, 0)
    assert record.windows.loss == (None, 3.0)


def test_every_finite_kl_falls_in_one_bin() -> None:
    kl = np.array([0.0, 1e-20, 2e-9, 2e-9, 0.5, 1e9, np.nan], np.float32)
    histogram = kl_histogram(distribution(kl))
    assert sum(histogram.counts) == 6
    assert histogram.counts[0] == 2
    assert histogram.counts[-1] == 1
    assert histogram.counts[math.floor((math.log10(2e-9) + 14) * 10)] == 2
