"""Rows cover each token once, show the model what the protocol says, and come out of a stream as of the whole."""

import numpy as np
import pytest

from ectype.evaluate.windows import Rows, fixed_rows, joined, rolling_rows, rolling_stream


def scores(rows: Rows) -> list[tuple[tuple[int, ...], int]]:
    """What the model has seen at each scored place, and the token that it is asked for."""
    return [
        (tuple(rows.inputs[row, : place + 1].tolist()), int(rows.targets[row, place]))
        for row, place in np.argwhere(rows.scored)
    ]


def oracle(text: list[int], first: int, window: int, stride: int) -> list[tuple[tuple[int, ...], int]]:
    """The same by the definition: token by token, in plain Python."""
    found = []
    for target in range(first, len(text)):
        row = (target - first) // stride
        last = min(first + (row + 1) * stride, len(text)) - 1
        found.append((tuple(text[max(0, last - window) : target]), text[target]))
    return found


def test_fixed_windows_lose_one_target_each() -> None:
    """C18: 33 tokens in windows of 16 start at 0 and 16 and score 30."""
    rows = fixed_rows(np.arange(32, dtype=np.uint16).reshape(2, 16))
    assert rows.inputs.dtype == rows.targets.dtype == np.int32
    assert rows.scored.sum() == 30
    assert scores(rows)[0] == ((0,), 1)
    assert scores(rows)[-1] == (tuple(range(16, 31)), 31)


def test_a_short_window_is_padded_and_masked() -> None:
    rows = fixed_rows(np.array([[17, 18, 19, 20, 9, 9]]), np.array([4]))
    assert rows.inputs.tolist() == [[17, 18, 19, 20, 0, 0]]
    assert [target for _, target in scores(rows)] == [18, 19, 20]


def test_ten_tokens_in_rolling_windows_of_four_are_scored_once() -> None:
    """C48: at most four tokens of input, one of context; the last window reaches back."""
    text = np.array([99, *range(10)])
    rows = rolling_rows(text, 1, 4, 4)
    assert [target for _, target in scores(rows)] == list(range(10))
    assert rows.inputs.tolist() == [[99, 0, 1, 2], [3, 4, 5, 6], [5, 6, 7, 8]]
    assert rows.scored.sum(axis=1).tolist() == [4, 4, 2]


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 40])
@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 3), (8, 1), (5, 4)])
def test_rolling_windows_are_what_their_definition_says(tokens: int, window: int, stride: int) -> None:
    text = np.random.default_rng(tokens).integers(0, 1000, tokens)
    for first in (1, min(4, tokens)):
        assert scores(rolling_rows(text, first, window, stride)) == oracle(text.tolist(), first, window, stride)


@pytest.mark.parametrize("piece", [1, 5, 64, 1000])
@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 3)])
def test_a_stream_gives_the_rows_of_the_whole(piece: int, window: int, stride: int) -> None:
    text = np.arange(333, dtype=np.uint16)
    pieces = (text[start : start + piece] for start in range(0, len(text), piece))
    found = joined(list(rolling_stream(pieces, window, stride, rows_at_once=4)))
    assert scores(found) == scores(rolling_rows(text, 1, window, stride))


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_that_would_skip_tokens_is_refused(stride: int) -> None:
    with pytest.raises(ValueError, match="stride_tokens"):
        rolling_rows(np.arange(9), 1, 8, stride)
