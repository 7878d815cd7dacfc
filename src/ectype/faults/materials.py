"""Token files that a fault has spoiled: copies of the training text of the recipe's index, in a folder of their own."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ectype.artifacts import write_bytes_atomic
from ectype.data.index import load_index
from ectype.data.tokenindex import TokenIndex
from ectype.data.windows import WindowReader
from ectype.evaluate.held_out import HeldOutText, load_held_out
from ectype.recipe.reference import named_reference
from ectype.recipe.spec import Recipe

MANIFEST = "manifest.txt"


def training_index(recipe: Recipe) -> TokenIndex:
    """The index that the recipe names, its files opened."""
    return load_index(str(recipe.inputs.index), recipe.data, recipe.model.vocab_size)


def widened(recipe: Recipe, folder: Path) -> Path:
    """Copies of the training text in uint32, where the index expects uint16; the manifest that lists them."""
    return _copied(training_index(recipe), folder, {}, "<u4")


def with_held_out_text(recipe: Recipe, folder: Path) -> tuple[Path, HeldOutText]:
    """Copies of the training text in which each domain's longest file begins with that domain's held-out text.

    Sizes stay as they are, and with them every window's number.

    Returns:
        The manifest that lists the copies, and the text of the recipe's reference that they hold.
    """
    text = load_held_out(named_reference(recipe), recipe.data.sequence_length_tokens, recipe.model.vocab_size)
    index = training_index(recipe)
    leaks = {}
    for domain, tokens in dict(text.tokens()).items():
        number = max(
            (n for n, file in enumerate(index.files) if file.label == domain), key=lambda n: index.files[n].tokens
        )
        leaks[number] = tokens
    return _copied(index, folder, leaks, None), text


def _copied(index: TokenIndex, folder: Path, leaks: Mapping[int, np.ndarray], dtype: str | None) -> Path:
    reader, lines = WindowReader(index), []
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
