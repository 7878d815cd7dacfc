"""Stream a text through a model, batch by batch, into the measures of each domain.

Every batch has one shape, so that a program compiles once. No more is held than a batch, sums for each unit, and a
bounded distribution of the KL.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from ectype.evaluate.devices import row_sharding, whole_rows
from ectype.evaluate.distribution import EXACT_VALUES
from ectype.evaluate.held_out import Block
from ectype.evaluate.summary import DomainMeasures, join_measures, reduce_measures
from ectype.evaluate.windows import Rows, joined
from ectype.progress import Progress, silent
from ectype.recipe.spec import Dtype

CHUNK_TOKENS = 1024
"""Tokens whose logits exist at a time; results do not depend on it beyond float32 rounding."""
_PARTS_AT_ONCE = 64


@dataclass(frozen=True)
class Settings:
    """How an evaluation is computed. All but `compute_dtype` change speed and memory only."""

    batch_windows: int = 16
    """Rows at a time, raised to a multiple of the devices."""
    compute_dtype: Dtype = "float32"
    devices: int | None = None
    """The first so many of this process's devices, over which rows are spread; None: all."""
    split_weights: bool = False
    """Keep a part of the weights on each device instead of a copy."""


Measure = Callable[[Rows, int], Mapping[str, jax.Array]]
"""Rows of a whole batch, and the number in the text of the first of them, to measures, float32 [B, L] each."""


def measure_text(
    blocks: Iterable[Block], measure: Measure, settings: Settings, progress: Progress = silent, targets: int = 0
) -> dict[str, DomainMeasures]:
    """Measures of every domain of a text, in the order in which the text names them first.

    Args:
        targets: that the text holds, for `progress`; 0: unknown.
    """
    parts: dict[str, list[DomainMeasures]] = {}
    done = 0
    for batch, measures in _measured(blocks, measure, settings):
        start = 0
        for block in batch:
            own = {name: values[start : start + len(block.rows)] for name, values in measures.items()}
            found = parts.setdefault(block.domain, [])
            found.append(reduce_measures(own, block.rows.scored, block.text_bytes, block.units))
            if len(found) > _PARTS_AT_ONCE or sum(len(part.kl.values) for part in found[1:]) > EXACT_VALUES:
                found[:] = [join_measures(found, units_continue=True)]
            start += len(block.rows)
            done += int(block.rows.scored.sum())
        progress("evaluate, tokens", done, targets)
    return {domain: join_measures(found, units_continue=True) for domain, found in parts.items()}


def _measured(
    blocks: Iterable[Block], measure: Measure, settings: Settings
) -> Iterator[tuple[list[Block], dict[str, np.ndarray]]]:
    """Batches with their measures on the host. The next batch starts before one is fetched."""
    batch_rows = whole_rows(settings.batch_windows, settings.devices)
    pending, first_row = None, 0
    for batch in batched(blocks, batch_rows):
        rows = joined([block.rows for block in batch])
        started = measure(filled_up(rows, batch_rows), first_row)
        first_row += len(rows)
        if pending is not None:
            yield pending[0], jax.device_get(pending[1])
        pending = batch, started
    if pending is not None:
        yield pending[0], jax.device_get(pending[1])


def batched(blocks: Iterable[Block], batch_rows: int) -> Iterator[list[Block]]:
    """The rows of a stream in batches of `batch_rows`, the last one as it comes; blocks are cut where a batch ends."""
    held: list[Block] = []
    room = batch_rows
    for block in blocks:
        start = 0
        while len(block.rows) - start >= room:
            yield [*held, _part(block, start, start + room)]
            held, start, room = [], start + room, batch_rows
        if start < len(block.rows):
            held.append(_part(block, start, len(block.rows)))
            room -= len(block.rows) - start
    if held:
        yield held


def _part(block: Block, start: int, stop: int) -> Block:
    rows = slice(start, stop)
    text_bytes = None if block.text_bytes is None else block.text_bytes[rows]
    return replace(block, rows=block.rows.part(rows), units=block.units[rows], text_bytes=text_bytes)


def filled_up(rows: Rows, batch_rows: int) -> Rows:
    """`rows`, and rows of zeros below them that score nothing."""
    below = [(0, batch_rows - len(rows)), (0, 0)]
    return Rows(np.pad(rows.inputs, below), np.pad(rows.targets, below), np.pad(rows.scored, below))


def on_devices(settings: Settings, *arrays: np.ndarray) -> Any:
    """Arrays whose first axis is a batch's rows, spread over the devices."""
    return jax.device_put(arrays, row_sharding(settings.devices))
