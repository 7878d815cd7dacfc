"""Checkpoint to Hugging Face folder, streamed, trimmed to the real vocabulary, byte-identical where it was imported."""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ectype.artifacts import write_bytes_atomic, write_json
from ectype.errors import EctypeError
from ectype.progress import Progress, silent
from ectype.recipe.spec import Model
from ectype.run.checkpoints import WEIGHTS_ITEM, description_file
from ectype.weights import store, tree
from ectype.weights.checkpoint import (
    expected_leaves,
    model_of,
    read_meta,
    refuse_incomplete,
)  # fmt: skip
from ectype.weights.hf_config import build_config, family_of, read_config
from ectype.weights.journal import Journal
from ectype.weights.mapping import Place, hugging_face_tensors
from ectype.weights.padded_rows import side_file_names
from ectype.weights.pipeline import Pipeline, as_bytes
from ectype.weights.safetensors_files import (
    DTYPES,
    INDEX_NAME,
    SINGLE_NAME,
    PlannedTensor,
    name_of_dtype,
    plan_file,
    write_at,
)  # fmt: skip
from ectype.weights.tree import LeafPath

DEFAULT_SHARD_BYTES = 5_000_000_000
_IN_FLIGHT = 6
_SIDE_FILES = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "chat_template", "generation_config")
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True)
class _Plan:
    """Everything known before the first byte is written."""

    checkpoint: Path
    model: Model
    dtype: np.dtype
    names: dict[str, Place]
    headers: dict[str, bytes]
    places: dict[str, PlannedTensor]
    config: dict[str, Any]
    digests: Mapping[str, str]
    """SHA-256 that each tensor must have, where the checkpoint is an import kept as it was."""


def export_weights(
    checkpoint: Path,
    output: Path,
    *,
    dtype: str | None = None,
    like: Path | None = None,
    max_length_tokens: int | None = None,
    padded_rows: Path | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write a Hugging Face folder that transformers loads. `output` appears by one rename; a killed export resumes.

    Args:
        checkpoint: an Ectype checkpoint.
        output: folder that must not exist.
        dtype: element type to convert to; None keeps the stored one.
        like: a Hugging Face folder to take tokenizer files, token ids and the stated maximum length from.
        max_length_tokens: `max_position_embeddings` to state; None: the source's.
        padded_rows: file to write the vocabulary rows to that the folder has no place for.
        shard_bytes: upper size of each safetensors file.
    """
    started = time.monotonic()
    plan = _plan(checkpoint, dtype, like, max_length_tokens, shard_bytes)
    if padded_rows is not None and plan.model.rows == plan.model.vocab_size:
        raise EctypeError(f"{checkpoint} has no padded rows", "more rows than vocab_size", "leave the option out")
    identity = hashlib.sha256(b"".join(plan.headers.values()) + json.dumps(plan.config).encode())
    identity.update(description_file(checkpoint).read_bytes())
    with Journal(output, identity.hexdigest()) as journal:
        taken_over = len(journal.done)
        _copy(plan, journal, progress)
        digests = {name: digest for done in journal.done.values() for name, digest in done.items()}
        damaged = [name for name, digest in plan.digests.items() if digests[name] != digest]
        if damaged:
            raise EctypeError(
                f"{checkpoint}: {', '.join(damaged[:8])} changed since the import (SHA-256 differs)",
                "the bytes that were imported", "the checkpoint is damaged: import it anew",
            )  # fmt: skip
        _write_side_files(plan, journal.folder, like)
        if padded_rows is not None:
            _write_padded_rows(plan, padded_rows)
        journal.commit()
    return {
        "output": str(output), "family": plan.config["model_type"], "dtype": plan.dtype.name,
        "tensors": len(plan.names), "bytes": sum(place.size_bytes for place in plan.places.values()),
        "shards": len(plan.headers), "vocab_size": plan.model.vocab_size,
        "rows_left_out": plan.model.rows - plan.model.vocab_size, "verified_against_import": bool(plan.digests),
        "resumed_units": taken_over, "seconds": time.monotonic() - started,
    }  # fmt: skip


def _plan(
    checkpoint: Path, dtype: str | None, like: Path | None, max_length_tokens: int | None, shard_bytes: int
) -> _Plan:
    meta = read_meta(checkpoint)
    model = model_of(meta, checkpoint)
    refuse_incomplete(checkpoint, expected_leaves(model, meta["dtype"]))
    source = meta.get("source") or {}
    donor = dict(read_config(like).values) if like else source.get("config") or {}
    length = max_length_tokens or donor.get("max_position_embeddings") or meta.get("sequence_length_tokens")
    if length is None:
        raise EctypeError(
            f"{checkpoint} does not say how long its sequences may be", "max_position_embeddings for config.json",
            "pass --max-length TOKENS, or --like HF_DIR",
        )  # fmt: skip
    element = np.dtype(dtype or meta["dtype"])
    dtype_name = name_of_dtype(element)
    names = hugging_face_tensors(model)
    config = build_config(
        model, family_of(model, source.get("family") or donor.get("model_type")), element.name, length,
        {key: donor.get(key) for key in _TOKEN_IDS},
    )  # fmt: skip
    untouched = meta.get("kind") == "weights" and element.name == meta["dtype"]
    same_bytes = untouched and source.get("dtypes") == [element.name]
    headers, places = _plan_shards(names, dtype_name, shard_bytes)
    return _Plan(
        checkpoint, model, element, names, headers, places, config, source["tensors_sha256"] if same_bytes else {}
    )


def _plan_shards(
    names: Mapping[str, Place], dtype_name: str, shard_bytes: int
) -> tuple[dict[str, bytes], dict[str, PlannedTensor]]:
    """Headers by file name and places by tensor name: tensors in order, a new file when the next would not fit."""
    groups: list[dict[str, tuple[str, tuple[int, ...]]]] = [{}]
    filled = 0
    for name, place in names.items():
        size = int(np.prod(place.shape, dtype=np.int64)) * DTYPES[dtype_name].itemsize
        if groups[-1] and filled + size > shard_bytes:
            groups.append({})
            filled = 0
        groups[-1][name] = (dtype_name, place.shape)
        filled += size
    headers, places = {}, {}
    for number, tensors in enumerate(groups, 1):
        file_name = SINGLE_NAME if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        headers[file_name], planned = plan_file(file_name, tensors)
        places |= planned
    return headers, places


@dataclass(frozen=True)
class _Unit:
    """What is recorded as finished at once: the tensors of one leaf that share chunks."""

    name: str
    path: LeafPath
    tensors: tuple[str, ...]
    blocks: slice | None
    """Their places on the stacked axis; None for a leaf that is not stacked."""


def _copy(plan: _Plan, journal: Journal, progress: Progress) -> None:
    total, copied = sum(place.size_bytes for place in plan.places.values()), 0
    journal.require_space(total)
    with ExitStack() as stack:
        files = {name: stack.enter_context(_open_shard(journal.folder / name)) for name in plan.headers}
        hasher, writer, syncer = (stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3))
        for name, header in plan.headers.items():
            write_at(files[name].fileno(), memoryview(header), 0)
        pipeline = Pipeline(_IN_FLIGHT)
        for array, unit in _units(plan):
            if unit.name in journal.done:
                copied += sum(plan.places[name].size_bytes for name in unit.tensors)
                progress("export, bytes", copied, total)
                continue
            hashes, writes = {name: hashlib.sha256() for name in unit.tensors}, []
            for first_row, values in _read(plan, array, unit):
                futures = []
                for name, rows in values.items():
                    data, place = as_bytes(rows), plan.places[name]
                    start = place.start + first_row * (place.size_bytes // plan.names[name].shape[0])
                    handle = files[place.file_name].fileno()
                    futures.append(hasher.submit(hashes[name].update, data))
                    writes.append(writer.submit(write_at, handle, data, start))
                    futures.append(writes[-1])
                    copied += data.nbytes
                pipeline.add(futures)
                progress("export, bytes", copied, total)
            # Only what is on disk counts as done; it is synced while the next units are read and written.
            touched = {files[plan.places[name].file_name].fileno() for name in unit.tensors}
            pipeline.add([syncer.submit(_sync, touched, writes)])
            pipeline.then(partial(journal.record, unit.name, hashes))
        pipeline.finish()


def _sync(handles: set[int], writes: list[Future[None]]) -> None:
    """Wait for the writes, then until they are on disk."""
    for write in writes:
        write.result()
    for handle in handles:
        os.fdatasync(handle)


def _open_shard(path: Path) -> Any:
    """Open for writing at any place, keeping what an interrupted run wrote."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)


def _units(plan: _Plan) -> Iterator[tuple[Any, _Unit]]:
    """Each unit with its array. Layers that a chunk of the checkpoint holds together are read together."""
    by_leaf: dict[LeafPath, list[str]] = {}
    for name, place in plan.names.items():
        by_leaf.setdefault(place.path, []).append(name)
    for path, names in by_leaf.items():
        array = store.open_array(plan.checkpoint / WEIGHTS_ITEM, path)
        if plan.names[names[0]].block is None:
            yield array, _Unit(tree.dotted(path), path, tuple(names), None)
            continue
        together = store.read_chunk(array)[0]
        for first in range(0, len(names), together):
            blocks = slice(first, min(first + together, len(names)))
            yield array, _Unit(f"{tree.dotted(path)}[{first}]", path, tuple(names[blocks]), blocks)


def _read(plan: _Plan, array: Any, unit: _Unit) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """First row and contiguous values of each tensor of the unit, one row of chunks at a time."""
    stacked = unit.blocks is not None
    step = store.read_chunk(array)[1 if stacked else 0]
    rows = plan.names[unit.tensors[0]].shape[0]
    for first in range(0, rows, step):
        span = slice(first, min(first + step, rows))
        region = array[unit.blocks, span] if stacked else array[span]
        values = store.read_region(plan.checkpoint, region).astype(plan.dtype, copy=False)
        parts = values if stacked else values[None]
        yield first, {name: np.ascontiguousarray(part) for name, part in zip(unit.tensors, parts, strict=True)}


def _write_side_files(plan: _Plan, folder: Path, like: Path | None) -> None:
    if len(plan.headers) > 1:
        index = {
            "metadata": {"total_size": sum(place.size_bytes for place in plan.places.values())},
            "weight_map": {name: place.file_name for name, place in plan.places.items()},
        }
        write_json(folder / INDEX_NAME, index)
    write_json(folder / "config.json", plan.config)
    for file in sorted(like.iterdir()) if like else []:
        if file.is_file() and file.name.startswith(_SIDE_FILES):
            write_bytes_atomic(folder / file.name, file.read_bytes())


def _write_padded_rows(plan: _Plan, file: Path) -> None:
    """The rows past the real vocabulary, under OLMo-core's names, as `--padded-rows` reads them."""
    rows, dtype_name = {}, name_of_dtype(plan.dtype)
    for name, path in side_file_names(plan.model).items():
        array = store.open_array(plan.checkpoint / WEIGHTS_ITEM, path)[plan.model.vocab_size :]
        rows[name] = store.read_region(plan.checkpoint, array).astype(plan.dtype, copy=False)
    header, _ = plan_file(file.name, {name: (dtype_name, array.shape) for name, array in rows.items()})
    write_bytes_atomic(file, header + b"".join(array.tobytes() for array in rows.values()))
