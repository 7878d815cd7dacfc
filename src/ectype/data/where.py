"""Where windows come from, and what they say, for people."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ectype.data.packed import PackedWindows
from ectype.data.source import WindowSource
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError


def places(index: TokenIndex, source: WindowSource, window_ids: np.ndarray) -> list[dict[str, Any]]:
    """For each window its id and its parts: path, label, first and last token in the file."""
    if isinstance(source, PackedWindows):
        plan = source.plan
        ranges = [range(plan.window_firsts[w], plan.window_firsts[w + 1]) for w in window_ids.astype(np.int64)]
        spans = [[(int(plan.files[d]), int(plan.starts[d]), int(plan.lengths[d])) for d in part] for part in ranges]
    else:
        numbers, offsets = index.locate(window_ids)
        length = index.sequence_length_tokens
        spans = [[(number, offset, length)] for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True)]
    return [
        {
            "window": int(window),
            "parts": [
                {
                    "path": index.files[number].path,
                    "label": index.files[number].label,
                    "first": start,
                    "last": start + size - 1,
                }
                for number, start, size in parts
            ],
        }
        for window, parts in zip(window_ids, spans, strict=True)
    ]


def decoder(path: Path) -> Callable[[list[int]], str]:
    """Token ids to text by a `tokenizer.json`. Raises EctypeError without the tokenizers package or a readable file."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise EctypeError("no tokenizers package", "it installed", "install the extra `reference`") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise EctypeError(f"tokenizer {path}: {error}", "a tokenizer.json", "check the path") from None
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)
