"""Read a reference's held-out text, once for all landmarks."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ectype.artifacts import read_json, sha256_of_file
from ectype.data.tokenfile import probe
from ectype.errors import EctypeError
from ectype.evaluate.token_bytes import NO_TOKEN, bytes_per_token
from ectype.evaluate.windows import Windows, cut_windows
from ectype.recipe.reference import Reference


@dataclass(frozen=True)
class HeldOutText:
    """Windows of every domain, and what the protocol and the record need to know of them."""

    window_tokens: int
    remainder: Literal["drop", "score"]
    domains: Mapping[str, Windows]
    sha256: Mapping[str, str]
    """Of each domain's tokens as little-endian int32, whatever width the file has."""
    token_bytes: np.ndarray | None
    """Bytes of each id, int64 [vocab_size]; None without a tokenizer."""
    tokenizer_sha256: str | None


def load_held_out(reference: Reference, window_tokens: int, vocab_size: int) -> HeldOutText:
    """Read and cut all domains of `reference`, and its tokenizer's byte counts.

    Raises:
        EctypeError: a file is absent or of another width, an id lies outside `vocab_size` or has no entry in the
            tokenizer, or a domain is shorter than one window.
    """
    domains, digests = {}, {}
    token_bytes, tokenizer_sha256 = _tokenizer(reference.tokenizer, vocab_size)
    for name, path in reference.held_out.domains.items():
        tokens = read_tokens(path, reference.held_out.dtype, vocab_size)
        if token_bytes is not None and np.any(token_bytes[tokens] == NO_TOKEN):
            unknown = int(tokens[token_bytes[tokens] == NO_TOKEN][0])
            raise EctypeError(
                f"held-out domain {name}: id {unknown} has no entry in {reference.tokenizer}",
                "the tokenizer that wrote these tokens",
                "correct `tokenizer` in the reference, or set it to null",
            )
        windows = cut_windows(tokens, window_tokens, reference.held_out.remainder)
        if len(windows.targets) == 0:
            raise EctypeError(
                f"held-out domain {name}: {len(tokens)} tokens",
                f"at least one window of {window_tokens}",
                "drop the domain, or score its remainder (`remainder`: `score`)",
            )
        domains[name] = windows
        digests[name] = hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()
    return HeldOutText(
        window_tokens, reference.held_out.remainder, domains, digests, token_bytes, tokenizer_sha256
    )  # fmt: skip


def read_tokens(path: Path, dtype: str, vocab_size: int) -> np.ndarray:
    """All tokens of a file, with or without a `.npy` header, as stored; every id is checked against `vocab_size`."""
    found = probe(str(path), dtype, vocab_size)
    if found is None:
        raise EctypeError(f"held-out file {path} is absent", "an existing file", "check the reference's paths")
    tokens = np.fromfile(path, np.dtype(dtype).newbyteorder("<"), offset=found.header_bytes)
    if len(tokens) and int(tokens.max()) >= vocab_size:
        raise EctypeError(
            f"held-out file {path}: id {int(tokens.max())}",
            f"ids below the model's vocab_size {vocab_size}",
            "check the file, its dtype and the model",
        )
    return tokens


def _tokenizer(path: Path | None, vocab_size: int) -> tuple[np.ndarray | None, str | None]:
    if path is None:
        return None, None
    counts = bytes_per_token(read_json(path, "tokenizer"), vocab_size)
    return counts, sha256_of_file(path)
