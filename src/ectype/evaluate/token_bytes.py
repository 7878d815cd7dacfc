"""How many bytes of the original UTF-8 text each token id stands for, from a byte-level `tokenizer.json`.

In a byte-level vocabulary (Radford et al. 2019) every character of an entry stands for one byte, so an entry's length
is its byte count; no tokenizer needs to run.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ectype.errors import EctypeError

NO_TOKEN = -1
"""Byte count of an id that the tokenizer does not define."""


def bytes_per_token(tokenizer: Mapping[str, Any], vocab_size: int) -> np.ndarray:
    """Bytes of each id, int64 [vocab_size]: 0 for special tokens, `NO_TOKEN` for ids without an entry.

    Args:
        tokenizer: the parsed content of `tokenizer.json`.
        vocab_size: number of real token ids.

    Raises:
        EctypeError: the vocabulary is not byte-level, or an entry lies outside `vocab_size`.
    """
    if not _is_byte_level(tokenizer.get("decoder")):
        raise EctypeError(
            f"tokenizer with decoder {_type_name(tokenizer.get('decoder'))}",
            "a ByteLevel decoder, whose vocabulary entries spell bytes",
            "set `tokenizer` to null in the reference; bits per byte are then left out",
        )
    alphabet = byte_alphabet()
    counts = np.full(vocab_size, NO_TOKEN, np.int64)
    added = {entry["id"]: entry for entry in tokenizer.get("added_tokens", ())}
    for text, token_id in tokenizer["model"]["vocab"].items():
        if token_id in added:
            continue
        if not set(text) <= alphabet:
            raise EctypeError(
                f"vocabulary entry {text!r} (id {token_id}) is not spelled in byte characters",
                "the 256-character byte alphabet",
                "check that this is the run's tokenizer",
            )
        _set(counts, token_id, len(text))
    for token_id, entry in added.items():
        _set(counts, token_id, 0 if entry.get("special") else len(entry["content"].encode()))
    return counts


def byte_alphabet() -> frozenset[str]:
    """The 256 characters that spell bytes: printable Latin-1 bytes stand for themselves, the others from U+0100 on."""
    itself = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    return frozenset(map(chr, itself)) | frozenset(map(chr, range(256, 256 + 256 - len(itself))))


def _set(counts: np.ndarray, token_id: int, value: int) -> None:
    if not 0 <= token_id < len(counts):
        raise EctypeError(
            f"tokenizer id {token_id}", f"ids below the model's vocab_size {len(counts)}", "use the run's own tokenizer"
        )
    counts[token_id] = value


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, Mapping):
        return False
    return decoder.get("type") == "ByteLevel" or any(map(_is_byte_level, decoder.get("decoders", ())))


def _type_name(decoder: Any) -> str:
    return decoder.get("type", "unknown") if isinstance(decoder, Mapping) else "none"
