"""Order statistics of a stream against those of the whole array."""

import numpy as np
import pytest

from ectype.evaluate import distribution as module
from ectype.evaluate.distribution import RELATIVE_ERROR, distribution, merged

SHARES = (0.0, 0.25, 0.5, 0.99, 1.0)


def in_parts(values: np.ndarray, size: int) -> module.Distribution:
    found = distribution(values[:0])
    for start in range(0, len(values), size):
        found = merged([found, distribution(values[start : start + size])])
    return found


def test_few_values_are_exact() -> None:
    values = np.random.default_rng(0).gamma(1.0, 1e-9, 5000).astype(np.float32)
    values[:700] = values[0]
    expected = np.quantile(values.astype(np.float64), SHARES)
    np.testing.assert_allclose(in_parts(values, 333).quantiles(SHARES), expected, rtol=1e-12)


def test_many_values_keep_their_leading_digits_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_VALUES", 1000)
    values = np.random.default_rng(0).lognormal(-10, 3, 200_000).astype(np.float32)
    values[:300] = 0
    found = in_parts(values, 5000)
    expected = np.quantile(values.astype(np.float64), SHARES)
    np.testing.assert_allclose(found.quantiles(SHARES)[:-1], expected[:-1], rtol=RELATIVE_ERROR)
    assert found.largest == values.max()
    assert found.counts.sum() == 200_000
    # Some 30 binary orders of magnitude, of 2,048 buckets each.
    assert len(found.values) < 61_440


def test_broken_numbers_break_the_quantiles_alone() -> None:
    found = distribution(np.array([1, np.nan, 2, np.nan], np.float32))
    assert np.isnan(found.quantiles((0.5,))).all()
    assert np.isnan(found.largest)
    assert found.counts.tolist() == [1, 1, 2]
    assert distribution(np.array([1, np.inf], np.float32)).quantiles((1.0,)) == [np.inf]
