"""Named tensors of a source to the arrays of a checkpoint: memory holds a few chunks, and a kill loses little."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ectype.progress import Progress
from ectype.weights import store, tree
from ectype.weights.journal import Journal
from ectype.weights.pipeline import Pipeline, as_bytes
from ectype.weights.store import Leaf
from ectype.weights.tree import LeafPath

_IN_FLIGHT = 6
"""Chunks being hashed and written while the next one is read."""
_WRITERS = 3
"""Chunks written at once: while one waits for the disk, others are copied into the page cache."""


class Stored(Protocol):
    """One tensor of a source, not yet read."""

    @property
    def name(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


class Part(Protocol):
    """One named tensor as a whole leaf, or as one layer of a stacked one."""

    @property
    def tensor(self) -> Stored: ...
    @property
    def rows(self) -> int: ...
    def read_rows(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows [first, end), and those of them that the source holds."""
        ...


@dataclass(frozen=True)
class Unit:
    """What is recorded as finished at once: one layer of a leaf, or a small leaf whole. `item` is its folder."""

    name: str
    item: str
    path: LeafPath
    leaf: Leaf
    parts: tuple[Part, ...]
    stacked: bool
    block: int | None

    @property
    def size_bytes(self) -> int:
        return sum(part.tensor.size_bytes for part in self.parts)


def plan_units(
    item: str, leaves: Mapping[LeafPath, Leaf], parts: Mapping[LeafPath, Sequence[Part]], prefix: str = ""
) -> list[Unit]:
    """The units of one item of a checkpoint; `prefix` goes before their names."""
    units = []
    for path, own in parts.items():
        name, leaf, stacked = prefix + tree.dotted(path), leaves[path], "blocks" in path
        if not stacked or store.chunk_shape(leaf, stacked) == leaf.shape:
            units.append(Unit(name, item, path, leaf, tuple(own), stacked, None))
        else:
            units += [
                Unit(f"{name}[{block}]", item, path, leaf, (part,), stacked, block) for block, part in enumerate(own)
            ]
    return units


def copy_units(units: Sequence[Unit], journal: Journal, progress: Progress, label: str) -> dict[str, str]:
    """Write every unit that the journal does not hold yet; SHA-256 of each tensor's stored bytes by name.

    Progress is in bytes; `label` names it.

    Raises:
        EctypeError: the disk has no room for them.
    """
    leaves = {(unit.item, unit.path): unit.leaf for unit in units}
    journal.require_space(sum(leaf.size_bytes for leaf in leaves.values()))
    total, copied = sum(unit.size_bytes for unit in units), 0
    with ThreadPoolExecutor(1) as hasher, ThreadPoolExecutor(_WRITERS) as writers, ThreadPoolExecutor(1) as recorder:
        pipeline, recorded = Pipeline(_IN_FLIGHT), []
        for unit in units:
            if unit.name in journal.done:
                copied += unit.size_bytes
                progress(label, copied, total)
                continue
            hashes = {part.tensor.name: hashlib.sha256() for part in unit.parts}
            for write, own in _pieces(journal.folder / unit.item, unit):
                futures = [hasher.submit(hashes[name].update, as_bytes(stored)) for name, stored in own]
                pipeline.add([writers.submit(write), *futures])
                copied += sum(stored.nbytes for _, stored in own)
                progress(label, copied, total)
            # The journal is synced to disk at each record: the next chunk is not kept waiting for that.
            pipeline.then(partial(_record_behind, recorder, recorded, journal, unit.name, hashes))
        pipeline.finish()
        for record in recorded:
            record.result()
    return {name: digest for unit in units for name, digest in journal.done[unit.name].items()}


def _record_behind(
    recorder: ThreadPoolExecutor, recorded: list[Any], journal: Journal, unit: str, hashes: dict[str, Any]
) -> None:
    recorded.append(recorder.submit(journal.record, unit, hashes))


def _pieces(folder: Path, unit: Unit) -> Iterator[tuple[Callable[[], None], list[Any]]]:
    """For each chunk: what writes it, and (tensor name, stored rows) that went into it."""
    leaf, chunk = unit.leaf, store.chunk_shape(unit.leaf, unit.stacked)
    store.create_array(folder, unit.path, leaf, chunk)
    write = partial(store.write_chunk, folder, unit.path, chunk)
    if unit.stacked and unit.block is None:
        read = [part.read_rows(0, part.rows) for part in unit.parts]
        values = np.stack([rows for rows, _ in read]).astype(leaf.dtype, copy=False)
        own = [(part.tensor.name, stored) for part, (_, stored) in zip(unit.parts, read, strict=True)]
        yield partial(write, (0,) * values.ndim, values), own
        return
    (part,) = unit.parts
    lead = () if unit.block is None else (unit.block,)
    rows = chunk[len(lead)]
    for number, first in enumerate(range(0, part.rows, rows)):
        values, stored = part.read_rows(first, min(first + rows, part.rows))
        index = (*lead, number, *(0,) * (values.ndim - 1))
        yield partial(write, index, values.astype(leaf.dtype, copy=False)), [(part.tensor.name, stored)]
