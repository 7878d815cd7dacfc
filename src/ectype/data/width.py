"""Tell an integer width from the tokens themselves. Pure: arrays in, verdicts out.

Size and range do not prove a width: a uint32 file always divides by two, and read as uint16 its low and high halves
may all be valid ids. The order of the halves betrays it: the high halves are all tiny, the low ones are not.
"""

import numpy as np

WIDTHS = ("uint8", "uint16", "uint32", "uint64")
_TINY = 15
"""High halves of any id below 2**20."""
_ENOUGH_PAIRS = 32


def dtype_of_id_space(vocab_size: int) -> str:
    """The narrowest unsigned type that holds `vocab_size - 1`, as OLMo-core chooses it."""
    for name in WIDTHS:
        if vocab_size - 1 <= np.iinfo(name).max:
            return name
    raise ValueError(f"vocab_size {vocab_size} does not fit 64 bits")


def looks_wider(tokens: np.ndarray) -> bool:
    """Whether `tokens` ([n], read at width w) alternate as little-endian halves of ids of width 2w do.

    Needs three pairs; below 32 pairs the high halves must be 0 or 1 (ids below 2**17) and some low half large.
    """
    pairs = len(tokens) // 2
    low, high = tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
    if pairs < 3 or high.max() > _TINY:
        return False
    if pairs < _ENOUGH_PAIRS:
        return bool(high.max() <= 1 and low.max() >= 256)
    return bool(low.max() >= 256 or (high.max() == 0 and low.max() > 0))


def looks_narrower(tokens: np.ndarray, vocab_size: int) -> bool:
    """Whether `tokens` ([n], read at width 2w) are pairs of ids of width w: out of range, while each half is in it."""
    half = np.dtype(f"<u{tokens.dtype.itemsize // 2}") if tokens.dtype.itemsize > 1 else None
    if half is None or not len(tokens) or tokens.max() < vocab_size:
        return False
    if half.itemsize == 1 and vocab_size > 256:
        return False  # Any two bytes are ids of so large a space: that says nothing, and bytes would not hold its ids.
    halves = np.ascontiguousarray(tokens).view(half)
    return bool(halves.max() < vocab_size and np.count_nonzero(halves[1::2]) * 2 > len(tokens))


def width_fault(tokens: np.ndarray, vocab_size: int) -> str | None:
    """Why `tokens` ([n] of the assumed dtype) can't be ids below `vocab_size` at this width; None when they can."""
    bits = 8 * tokens.dtype.itemsize
    if not len(tokens):
        return None
    if bits < 64 and looks_wider(tokens):
        return f"its ids alternate like the halves of uint{2 * bits}, read here as uint{bits}"
    if looks_narrower(tokens, vocab_size):
        return f"its ids are pairs of uint{bits // 2}, read here as uint{bits}"
    beyond = tokens >= vocab_size
    if beyond.any():
        return f"it holds the id {int(tokens[beyond][0])}, and the id space ends at {vocab_size - 1}"
    return None
