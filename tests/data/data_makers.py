"""Builders of data sections, token files and indexes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ectype.data.manifest import Entry
from ectype.data.tokenindex import TokenIndex, build_index
from ectype.recipe.spec import Data, Order


def make_data(length: int = 16, batch: int = 2, *, kind: str = "olmo-core", seed: int = 7, **fields: Any) -> Data:
    """A data section; `target` sets the order's max target length."""
    order = Order(kind=kind, seed=seed, max_target_length_tokens=fields.pop("target", None))  # type: ignore[arg-type]
    return Data(
        sequence_length_tokens=length, global_batch_windows=batch, eos_id=0, pad_id=1, order=order, **fields
    )  # fmt: skip


def write_tokens(path: Path, tokens: Sequence[int] | np.ndarray, dtype: str = "<u2") -> Path:
    """A headerless token file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.asarray(tokens, np.int64).astype(dtype).tobytes())
    return path


def index_of(paths: Sequence[Path], length: int = 16, vocab_size: int = 1000, **options: Any) -> TokenIndex:
    """The index of some files."""
    entries = [Entry(str(path), path.parent.name, path.name) for path in paths]
    return build_index(entries, sequence_length_tokens=length, vocab_size=vocab_size, **options)
