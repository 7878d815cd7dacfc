"""The repetition filter and document numbers, against the reference's own verdicts."""

import json
from pathlib import Path

import numpy as np
import pytest
from data_makers import index_of

from ectype.data.documents import document_lengths, document_spans, segment_ids
from ectype.data.repetition import keep_windows, longest_run
from ectype.data.windows import WindowReader
from ectype.recipe.spec import RepetitionFilter

RULE = RepetitionFilter(max_period=13, min_period=1, max_count=32)


def test_reference_verdicts(tiny: Path, tiny_paths: list[Path]) -> None:
    stored = json.loads((tiny / "components/instance_filter.json").read_text())
    tokens = np.array([case["tokens"] for case in stored["cases"]], np.int32)
    assert keep_windows(tokens, RULE).tolist() == [case["keep"] for case in stored["cases"]]
    index = index_of(tiny_paths, 256)
    keep = keep_windows(WindowReader(index).read(np.arange(index.windows)), RULE)
    assert np.flatnonzero(~keep).tolist() == stored["masked_train_instances"]


def near_threshold_windows(seed: int, rows: int, length: int) -> np.ndarray:
    """Windows with a run of some period that just reaches, or just misses, 32 repetitions, anywhere."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(100, 900, (rows, length))
    for row in tokens:
        period = int(generator.integers(1, 16))
        size = min(length, 32 * period + int(generator.integers(-2 * period, 2 * period + 1)))
        start = int(generator.choice([0, length - size, generator.integers(0, length - size + 1)]))
        row[start : start + size] = np.resize(generator.integers(0, 4, period), size)
    return tokens


@pytest.mark.reference
@pytest.mark.parametrize(("period", "count"), [(13, 32), (13, 3), (13, 1), (5, 8), (40, 4)])
def test_equal_to_olmo_core_near_the_threshold(period: int, count: int) -> None:
    utils = pytest.importorskip("olmo_core.data.utils")
    rule = RepetitionFilter(max_period=period, min_period=1, max_count=count)
    for length in (512, 500, 61):
        tokens = near_threshold_windows(length + count, 60, length)
        expected = [
            not any(found.times >= count for found in utils.find_periodic_sequences(row, period, 1)) for row in tokens
        ]
        assert keep_windows(tokens.astype(np.int32), rule).tolist() == expected
        if (period, count) == (13, 32) and length == 512:
            assert 5 < sum(expected) < 55


@pytest.mark.reference
def test_equal_to_olmo_core_on_few_ids() -> None:
    """Two or three ids make short repetitions everywhere."""
    utils = pytest.importorskip("olmo_core.data.utils")
    generator = np.random.default_rng(2)
    rule = RepetitionFilter(max_period=6, min_period=2, max_count=5)
    for ids in (1, 2, 3):
        tokens = generator.integers(0, ids, (40, 97))
        expected = [not any(f.times >= 5 for f in utils.find_periodic_sequences(row, 6, 2)) for row in tokens]
        assert keep_windows(tokens, rule).tolist() == expected


def test_the_cheap_condition_never_decides_alone() -> None:
    """Wherever it lies, a run of exactly the needed length is found, and one shorter by a token is not."""
    for period in (1, 2, 5, 13):
        needed = 31 * period
        for start in range(0, 60):
            tokens = np.arange(1000, 1512)[None].repeat(2, 0)
            tokens[0, start : start + needed + period] = np.resize(np.arange(period), needed + period)
            tokens[1, start : start + needed + period - 1] = np.resize(np.arange(period), needed + period - 1)
            assert keep_windows(tokens, RULE).tolist() == [False, True]
            assert [longest_run(row, period) for row in tokens] == [needed, needed - 1]


def test_windows_shorter_than_three_periods() -> None:
    assert keep_windows(np.zeros((2, 2), np.int32), RULE).tolist() == [True, True]
    assert keep_windows(np.zeros((1, 96), np.int32), RULE).tolist() == [False]
    assert keep_windows(np.zeros((1, 31), np.int32), RULE).tolist() == [True]


def test_document_numbers() -> None:
    tokens = np.array([[5, 6, 0, 7, 0, 0, 9], [0, 1, 1, 1, 1, 1, 0], [4, 4, 4, 4, 4, 4, 4]])
    assert segment_ids(tokens, 0).tolist() == [[0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1], [0] * 7]
    assert [document_lengths(row, 0).tolist() for row in tokens] == [[3, 2, 1, 1], [1, 6], [7]]
    assert document_spans(np.array([2, 4, 5])).tolist() == [[0, 3], [3, 5], [5, 6]]
    assert document_spans(np.array([], np.int64)).shape == (0, 2)


@pytest.mark.reference
def test_document_lengths_equal_olmo_core() -> None:
    utils = pytest.importorskip("olmo_core.data.utils")
    generator = np.random.default_rng(0)
    for _ in range(50):
        tokens = generator.integers(0, 5, 40)
        lengths = document_lengths(tokens, 0)
        assert lengths.tolist() == utils.get_document_lengths(tokens, 0).tolist()
        assert np.bincount(segment_ids(tokens[None], 0)[0]).tolist() == lengths.tolist()
