"""Which rows are computed together, and in which of a few shapes. Plain numbers and arrays; no JAX."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ectype.recipe.spec import Dtype

_SHORTEST = 16
_RUNGS_PER_DOUBLING = 4


@dataclass(frozen=True)
class Settings:
    """How requests are computed.

    `batch_rows` changes speed and memory; what a row's numbers are depends on its own tokens, on `batch_rows` and on
    the devices alone, and on the last two only in the order of float32 sums.
    """

    max_length: int
    batch_rows: int = 8
    compute_dtype: Dtype = "float32"
    devices: int | None = None
    """The first so many of this process's devices; None: all."""


def length_ladder(max_length: int) -> list[int]:
    """Lengths to which rows are filled up: four per doubling from 16 on, all multiples of 8, the last `max_length`.

    A row is filled up by a quarter at most from 32 tokens on. 15 lengths reach 256 tokens, 27 reach 2,048 and 35
    reach 8,192.
    """
    rungs, rung = [], _SHORTEST
    while rung < max_length:
        rungs.append(rung)
        rung += max(8, (1 << (rung.bit_length() - 1)) // _RUNGS_PER_DOUBLING)
    return [*rungs, max_length]


def padded_length(tokens: int, ladder: Sequence[int]) -> int:
    """The least length of `ladder` that holds `tokens`."""
    return next(rung for rung in ladder if rung >= tokens)


def batches(rows: Sequence[Sequence[int]], ladder: Sequence[int], batch_rows: int) -> Iterator[tuple[int, list[int]]]:
    """Lengths, longest first, with the indices of up to `batch_rows` rows that are filled up to them.

    Rows of one length stand in the order of their tokens, so that the order in which they were asked for changes
    nothing.
    """
    order = sorted(range(len(rows)), key=lambda row: (-len(rows[row]), tuple(rows[row])))
    by_length: dict[int, list[int]] = {}
    for row in order:
        by_length.setdefault(padded_length(len(rows[row]), ladder), []).append(row)
    for length, members in by_length.items():
        for start in range(0, len(members), batch_rows):
            yield length, members[start : start + batch_rows]


def filled_up(rows: Sequence[Sequence[int]], length: int, batch_rows: int) -> np.ndarray:
    """int32 [batch_rows, length]: the rows from the left, zeros behind them and below them."""
    tokens = np.zeros((batch_rows, length), np.int32)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return tokens
