"""Hugging Face folder to checkpoint, streamed: memory holds a few chunks however large the model is."""

import hashlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ectype.artifacts import write_json
from ectype.errors import EctypeError
from ectype.progress import Progress, silent
from ectype.run.checkpoints import WEIGHTS_ITEM, description_file
from ectype.weights import store, tree
from ectype.weights.checkpoint import describe
from ectype.weights.hf_source import HuggingFaceSource, Part, open_source
from ectype.weights.journal import Journal
from ectype.weights.pipeline import Pipeline, as_bytes
from ectype.weights.tree import Path as LeafPath

_IN_FLIGHT = 3
"""Chunks being hashed and written while the next one is read."""


@dataclass(frozen=True)
class _Unit:
    """What is recorded as finished at once: one layer of a leaf, or a small leaf whole."""

    name: str
    path: LeafPath
    parts: tuple[Part, ...]
    block: int | None

    @property
    def size_bytes(self) -> int:
        return sum(part.tensor.size_bytes for part in self.parts)


def import_weights(
    folder: Path,
    output: Path,
    *,
    dtype: str | None = None,
    padded_rows: Path | None = None,
    trained_rows: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Convert a Hugging Face folder into a checkpoint at `output`; arguments as in `hf_source.open_source`.

    The folder is checked in full before anything is written. `output` appears by one rename at the end. After a kill
    the same call goes on where it stopped.

    Returns:
        What was done: model size, element type, bytes, seconds, units taken over from an interrupted run.
    """
    started = time.monotonic()
    source = open_source(folder, dtype=dtype, padded_rows=padded_rows, trained_rows=trained_rows, seed=seed)
    units = _units(source)
    with Journal(output, source.identity()) as journal:
        taken_over = len(journal.done)
        _require_space(output, source, journal)
        _copy(source, units, journal, progress)
        digests = {name: digest for unit in units for name, digest in journal.done[unit.name].items()}
        store.describe_to_orbax(journal.folder / WEIGHTS_ITEM, source.leaves)
        write_json(description_file(journal.folder), _meta(source, digests))
        journal.commit()
    return {
        "output": str(output), "family": source.config.family, "dtype": source.dtype, "tensors": len(digests),
        "parameters": sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in source.leaves.values()),
        "vocab_size": source.model.vocab_size, "rows": source.model.rows,
        "padded_rows": source.padded.origin if source.padded else None,
        "bytes": sum(unit.size_bytes for unit in units), "resumed_units": taken_over,
        "seconds": time.monotonic() - started,
    }  # fmt: skip


def _meta(source: HuggingFaceSource, digests: dict[str, str]) -> dict[str, Any]:
    return describe(
        source.model, source.dtype, kind="weights", step=None,
        source={
            "kind": "hugging face", "folder": source.folder.name, "family": source.config.family,
            "dtypes": sorted({part.tensor.dtype.name for parts in source.parts.values() for part in parts}),
            "config": dict(source.config.values), "tensors_sha256": digests,
        },
        padded_rows=source.padded.origin if source.padded else None,
    )  # fmt: skip


def _units(source: HuggingFaceSource) -> list[_Unit]:
    units = []
    for path, parts in source.parts.items():
        name, stacked = tree.dotted(path), path[0] == "blocks"
        whole = store.chunk_shape(source.leaves[path], stacked) == source.leaves[path].shape
        if not stacked or whole:
            units.append(_Unit(name, path, parts, None))
        else:
            units += [_Unit(f"{name}[{block}]", path, (part,), block) for block, part in enumerate(parts)]
    return units


def _require_space(output: Path, source: HuggingFaceSource, journal: Journal) -> None:
    total = sum(int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize for leaf in source.leaves.values())
    written = sum(path.stat().st_size for path in journal.folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(journal.folder).free
    if free < total - written:
        raise EctypeError(
            f"{output.parent} has {free:,} bytes free", f"{total - written:,} bytes for the checkpoint", "make room"
        )


def _copy(source: HuggingFaceSource, units: list[_Unit], journal: Journal, progress: Progress) -> None:
    total, copied = sum(unit.size_bytes for unit in units), 0
    folder = journal.folder / WEIGHTS_ITEM
    with ThreadPoolExecutor(1) as hasher:
        pipeline = Pipeline(_IN_FLIGHT)
        for unit in units:
            if unit.name in journal.done:
                copied += unit.size_bytes
                progress("import, bytes", copied, total)
                continue
            hashes = {part.tensor.name: hashlib.sha256() for part in unit.parts}
            for region, values, own in _pieces(folder, source.leaves[unit.path], unit):
                futures = [hasher.submit(hashes[name].update, as_bytes(stored)) for name, stored in own]
                pipeline.add([region.write(values, can_reference_source_data_indefinitely=True), *futures])
                copied += sum(stored.nbytes for _, stored in own)
                progress("import, bytes", copied, total)
            pipeline.then(partial(_record, journal, unit.name, hashes))
        pipeline.finish()


def _record(journal: Journal, unit: str, hashes: dict[str, Any]) -> None:
    journal.record(unit, {name: digest.hexdigest() for name, digest in hashes.items()})


def _pieces(folder: Path, leaf: store.Leaf, unit: _Unit) -> Iterator[tuple[Any, np.ndarray, list[Any]]]:
    """For each chunk: its region of the output, its values, and (tensor name, stored rows) that went into it."""
    stacked = unit.path[0] == "blocks"
    chunk = store.chunk_shape(leaf, stacked)
    array = store.create_array(folder, unit.path, leaf, chunk)
    if stacked and unit.block is None:
        read = [part.read_rows(0, part.rows) for part in unit.parts]
        values = np.stack([rows for rows, _ in read]).astype(leaf.dtype, copy=False)
        yield array, values, [(part.tensor.name, own) for part, (_, own) in zip(unit.parts, read, strict=True)]
        return
    (part,) = unit.parts
    target, rows = (array, chunk[0]) if unit.block is None else (array[unit.block], chunk[1])
    for first in range(0, part.rows, rows):
        values, own = part.read_rows(first, min(first + rows, part.rows))
        yield target[first : first + len(values)], values.astype(leaf.dtype, copy=False), [(part.tensor.name, own)]
