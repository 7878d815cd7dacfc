"""One token file: its header if it has one, its size in tokens, a sample of its content, and a check of its width."""

import ast
import hashlib
import math
from dataclasses import dataclass

import numpy as np

from ectype.data.storage import read_ranges, size_bytes
from ectype.data.width import width_fault
from ectype.errors import EctypeError

_MAGIC = b"\x93NUMPY"
_BLOCK_BYTES = 4096
_BLOCKS = 8


@dataclass(frozen=True)
class Probe:
    """What a look at a token file found."""

    header_bytes: int
    """Bytes before the first token: 0, or the length of a real `.npy` header."""
    tokens: int
    sample_sha256: str
    """SHA-256 of up to eight blocks of 4,096 bytes, spread from the first token to the last."""


def probe(path: str, dtype: str, vocab_size: int) -> Probe | None:
    """Look at the file at `path`; None when there is no such file.

    Raises:
        EctypeError: unreadable, a size that does not divide by the width, a header that contradicts `dtype` or the
            size, ids outside the id space, or ids of another width.
    """
    size = size_bytes(path)
    if size is None:
        return None
    item = np.dtype(dtype).itemsize
    head = read_ranges(path, [(0, min(size, _BLOCK_BYTES))])[0] if size else b""
    header = _header(path, head, size, dtype) if head.startswith(_MAGIC) else 0
    if (size - header) % item:
        raise EctypeError(
            f"{path}: {size - header} bytes of tokens do not divide by {item} ({dtype})", f"whole {dtype} tokens",
            "the file was cut, or holds another width: see the id space (--vocab-size or the recipe)",
        )  # fmt: skip
    payload = size - header
    ranges = sample_ranges(payload)
    parts = read_ranges(path, [(header + start, header + stop) for start, stop in ranges]) if ranges else []
    tokens = np.frombuffer(b"".join(parts), np.dtype(dtype).newbyteorder("<"))
    if fault := width_fault(tokens, vocab_size):
        raise EctypeError(
            f"{path}: {fault}", f"{dtype} ids below {vocab_size}",
            "give the id space that the files were written with (--vocab-size or the recipe's model.vocab_size)",
        )  # fmt: skip
    return Probe(header, payload // item, hashlib.sha256(b"".join(parts)).hexdigest())


def sample_ranges(payload_bytes: int) -> list[tuple[int, int]]:
    """Byte ranges [start, stop) of the sample; starts are multiples of eight, so that no token or pair is split."""
    if payload_bytes == 0:
        return []
    if payload_bytes <= _BLOCKS * _BLOCK_BYTES:
        return [(0, payload_bytes)]
    last = payload_bytes - _BLOCK_BYTES
    starts = [last * i // (_BLOCKS - 1) // 8 * 8 for i in range(_BLOCKS - 1)]
    return [(start, start + _BLOCK_BYTES) for start in starts] + [(last // 8 * 8, payload_bytes)]


def _header(path: str, head: bytes, size: int, dtype: str) -> int:
    """Length of a real `.npy` header, checked against the expected dtype and the file's size."""
    text_at = 10 if head[6:7] == b"\x01" else 12
    header = text_at + int.from_bytes(head[8:text_at], "little")
    try:
        fields = ast.literal_eval(head[text_at:header].decode("latin1").strip())
        found, shape, fortran = np.dtype(fields["descr"]), fields["shape"], fields["fortran_order"]
        count = math.prod(range(size)[n] for n in shape)  # an axis is an integer below the file's size
    except Exception as error:
        raise EctypeError(
            f"{path}: broken .npy header: {error}", "a whole .npy header, or none", "write the file anew"
        ) from None
    if found != np.dtype(dtype).newbyteorder("<"):
        raise EctypeError(
            f"{path}: its .npy header says {found.str}",
            f"little-endian {dtype}",
            "give the id space it was written with",
        )
    if fortran and len(shape) > 1:
        raise EctypeError(f"{path}: Fortran order in its .npy header", "C order", "write it in C order")
    if header + count * found.itemsize != size:
        raise EctypeError(
            f"{path}: {size} bytes, and its .npy header announces {header + count * found.itemsize}", "equal sizes",
            "the file was cut or grown: restore it",
        )  # fmt: skip
    return header
