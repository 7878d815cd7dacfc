"""Token files that a fault has spoiled: copies of the training text of the recipe's index, in a folder of their own."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ectype.artifacts import write_bytes_atomic
from ectype.data.index import load_index
from ectype.data.tokenindex import TokenIndex
from ectype.data.windows import WindowReader
from ectype.recipe.spec import Recipe

MANIFEST = "manifest.txt"


def widened(recipe: Recipe, folder: Path) -> Path:
    """Copies of the training text in uint32, where the index expects uint16; the manifest that lists them."""
    return _copied(recipe, folder, {}, "<u4")


def with_held_out_text(recipe: Recipe, held_out: Mapping[str, np.ndarray], folder: Path) -> Path:
    """Copies of the training text in which each domain's longest file begins with that domain's held-out text.

    Sizes stay as they are, and with them every window's number.

    Args:
        held_out: tokens by domain, the labels of the index.
    """
    index = _index(recipe)
    leaks = {}
    for domain, tokens in held_out.items():
        number = max(
            (n for n, file in enumerate(index.files) if file.label == domain), key=lambda n: index.files[n].tokens
        )
        leaks[number] = tokens
    return _copied(recipe, folder, leaks, None)


def _copied(recipe: Recipe, folder: Path, leaks: Mapping[int, np.ndarray], dtype: str | None) -> Path:
    index, lines = _index(recipe), []
    reader = WindowReader(index)
    for number, file in enumerate(index.files):
        tokens = reader.read_span(number, 0, file.tokens).astype(np.dtype(dtype or index.dtype).newbyteorder("<"))
        leaked = leaks.get(number, tokens[:0])
        tokens[: len(leaked)] = leaked
        name = f"{number:03d}.npy"
        write_bytes_atomic(folder / name, tokens.tobytes())
        lines.append(f"{file.label},{name}\n")
    reader.close()
    write_bytes_atomic(folder / MANIFEST, "".join(lines).encode())
    return folder / MANIFEST


def _index(recipe: Recipe) -> TokenIndex:
    return load_index(str(recipe.inputs.index), recipe.data, recipe.model.vocab_size)
