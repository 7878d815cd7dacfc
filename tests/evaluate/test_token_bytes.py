"""Byte counts read off the vocabulary equal what a tokenizer decodes to."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ectype.errors import EctypeError
from ectype.evaluate.token_bytes import NO_TOKEN, byte_alphabet, bytes_per_token

TOKENIZER: dict[str, Any] = {
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [
        {"id": 0, "content": "<|end|>", "special": True},
        {"id": 4, "content": "naïve", "special": False},
    ],
    "model": {"vocab": {"<|end|>": 0, "a": 1, "Ġthe": 2, "Ã¯": 3}},
}


def test_every_character_is_a_byte_and_special_tokens_are_none() -> None:
    # "Ġthe" is " the"; "Ã¯" spells the two UTF-8 bytes of one letter; "naïve" has six bytes.
    assert bytes_per_token(TOKENIZER, 6).tolist() == [0, 1, 4, 2, 6, NO_TOKEN]


def test_the_alphabet_has_one_character_per_byte() -> None:
    assert len(byte_alphabet()) == 256


def test_a_nested_byte_level_decoder_is_found() -> None:
    nested = TOKENIZER | {"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]}}
    assert bytes_per_token(nested, 6).tolist() == bytes_per_token(TOKENIZER, 6).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": {"type": "Metaspace"}}, "decoder Metaspace"),
        ({"decoder": None}, "decoder none"),
        ({"model": {"vocab": {"▁the": 1}}}, "byte characters"),
        ({"model": {"vocab": {"a": 99}}}, "tokenizer id 99"),
    ],
)
def test_other_tokenizers_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EctypeError, match=message):
        bytes_per_token(TOKENIZER | change, 6)


@pytest.mark.reference
def test_counts_equal_the_tokenizer_library(shared: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder = shared / "reference" / "olmocore_tiny"
    path = folder / "tokenizer" / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    counts = bytes_per_token(json.loads(path.read_text()), 1000)
    tokens = np.fromfile(folder / "tokens" / "heldout" / "jargon.npy", "<u2")
    text = tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
    assert counts[tokens].sum() == len(text.encode())
    assert counts[[0, 1]].tolist() == [0, 0]
