"""Named tensors of a source to the arrays of a checkpoint: memory holds a few chunks, and a kill loses little."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
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


def copy_units(units: Sequence[Unit], journal: Journal, progress: Progress) -> dict[str, str]:
    """Write every unit that the journal does not hold yet; SHA-256 of each tensor's stored bytes by name.

    Raises:
        EctypeError: the disk has no room for them.
    """
    leaves = {(unit.item, unit.path): unit.leaf for unit in units}
    journal.require_space(sum(leaf.size_bytes for leaf in leaves.values()))
    total, copied = sum(unit.size_bytes for unit in units), 0
    with ThreadPoolExecutor(1) as hasher, ThreadPoolExecutor(1) as recorder:
        pipeline, recorded = Pipeline(_IN_FLIGHT), []
        for unit in units:
            if unit.name in journal.done:
                copied += unit.size_bytes
                progress("import, bytes", copied, total)
                continue
            hashes = {part.tensor.name: hashlib.sha256() for part in unit.parts}
            for region, values, own in _pieces(journal.folder / unit.item, unit):
                futures = [hasher.submit(hashes[name].update, as_bytes(stored)) for name, stored in own]
                pipeline.add([region.write(values, can_reference_source_data_indefinitely=True), *futures])
                copied += sum(stored.nbytes for _, stored in own)
                progress("import, bytes", copied, total)
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


def _pieces(folder: Path, unit: Unit) -> Iterator[tuple[Any, np.ndarray, list[Any]]]:
    """For each chunk: its region of the output, its values, and (tensor name, stored rows) that went into it."""
    leaf, chunk = unit.leaf, store.chunk_shape(unit.leaf, unit.stacked)
    array = store.create_array(folder, unit.path, leaf, chunk)
    if unit.stacked and unit.block is None:
        read = [part.read_rows(0, part.rows) for part in unit.parts]
        values = np.stack([rows for rows, _ in read]).astype(leaf.dtype, copy=False)
        yield array, values, [(part.tensor.name, own) for part, (_, own) in zip(unit.parts, read, strict=True)]
        return
    (part,) = unit.parts
    target, rows = (array, chunk[0]) if unit.block is None else (array[unit.block], chunk[1])
    for first in range(0, part.rows, rows):
        values, own = part.read_rows(first, min(first + rows, part.rows))
        yield target[first : first + len(values)], values.astype(leaf.dtype, copy=False), [(part.tensor.name, own)]
