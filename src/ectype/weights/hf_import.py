"""Hugging Face folder to checkpoint, streamed: memory holds a few chunks however large the model is."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from ectype.artifacts import write_json
from ectype.progress import Progress, silent
from ectype.run.checkpoints import WEIGHTS_ITEM, description_file
from ectype.weights import store
from ectype.weights.checkpoint import describe
from ectype.weights.hf_source import HuggingFaceSource, open_source
from ectype.weights.journal import Journal
from ectype.weights.transfer import copy_units, plan_units


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
    units = plan_units(WEIGHTS_ITEM, source.leaves, source.parts)
    # In this order, files are read from end to end.
    starts = {part.tensor.name: (part.tensor.file, part.tensor.start) for own in source.parts.values() for part in own}
    units.sort(key=lambda unit: starts[unit.parts[0].tensor.name])
    with Journal(output, source.identity()) as journal:
        taken_over = len(journal.done)
        digests = copy_units(units, journal, progress, "import, bytes")
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
