"""Token ids for a parity check: random, from a file, or from text."""

from pathlib import Path

import numpy as np

from ectype.artifacts import parse_json
from ectype.errors import EctypeError
from ectype.recipe.spec import Model

_BEYOND_TWO_WINDOWS_TOKENS = 64
_WITHOUT_WINDOW_TOKENS = 256


def default_length(model: Model) -> int:
    """Over twice the largest window, so that keys leave it and come back nowhere."""
    largest = max((window for window in model.window_pattern if window is not None), default=None)
    return _WITHOUT_WINDOW_TOKENS if largest is None else 2 * largest + _BEYOND_TWO_WINDOWS_TOKENS


def random_tokens(model: Model, length: int, seed: int) -> np.ndarray:
    """`length` ids drawn evenly from the real vocabulary."""
    return np.random.Generator(np.random.PCG64(seed)).integers(0, model.vocab_size, length, dtype=np.int32)


def read_tokens(file: Path, model: Model, length: int | None) -> np.ndarray:
    """Ids from a JSON list, a NumPy file, or a headerless token file whose width follows from the vocabulary."""
    try:
        if file.suffix == ".json":
            ids = np.asarray(parse_json(file.read_bytes()))
        elif file.read_bytes()[:6] == b"\x93NUMPY":
            ids = np.load(file, allow_pickle=False)
        else:
            ids = np.fromfile(file, "<u2" if model.vocab_size <= 1 << 16 else "<u4")
    except (OSError, ValueError) as error:
        raise EctypeError(f"token file {file}: {error}", "a JSON list, .npy or raw ids", "check the file") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise EctypeError(f"token file {file}: {ids.dtype} of shape {list(ids.shape)}", "one row of ids", "flatten it")
    return ids[:length].astype(np.int64)


def encode_text(folder: Path, text: str, length: int | None) -> np.ndarray:
    """Ids of `text` by the tokenizer in a Hugging Face folder."""
    from transformers import AutoTokenizer

    return np.asarray(AutoTokenizer.from_pretrained(folder)(text)["input_ids"][:length], np.int64)
