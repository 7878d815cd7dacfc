"""Find where one text repeats blocks of another, at any offset, by rolling hashes. Arrays in, arrays out.

A block's hash is the sum of its mixed tokens times powers of an odd number, modulo 2^64 (Karp and Rabin 1987); the sums
of all blocks follow from one running sum. Two such hashes with different keys make 128 bits, so that a hit by accident
in 10^13 tokens is beyond hope.

Shapes: T tokens, N windows, L tokens of a window, b tokens of a block, H blocks.
"""

from dataclasses import dataclass

import numpy as np

from ectype.data.permutation import mix64

_MULTIPLIER = 0x9E3779B97F4A7C15 | 1
_KEYS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))
_FILTER_BITS = 20


@dataclass(frozen=True)
class Blocks:
    """Blocks to look for: two hashes of each, uint64 [H, 2], by ascending first hash; and the text each is of."""

    hashes: np.ndarray
    texts: np.ndarray
    filter: np.ndarray
    """bool: whether a first hash with these last bits exists."""


def text_blocks(tokens_T: np.ndarray, block_tokens: int) -> np.ndarray:
    """Hashes of the blocks that cover a text: one behind the other, and one that ends where it ends. uint64 [H, 2].

    None of a text that is shorter than a block.
    """
    if len(tokens_T) < block_tokens:
        return np.empty((0, 2), np.uint64)
    starts = np.arange(0, len(tokens_T) - block_tokens + 1, block_tokens)
    starts = np.union1d(starts, len(tokens_T) - block_tokens)
    return np.stack([_rolling(tokens_T[None], block_tokens, key)[0, starts] for key in _KEYS], axis=1)


def blocks_of(hashes_H2: np.ndarray, texts_H: np.ndarray) -> Blocks:
    """Blocks ready to be looked for."""
    order = np.argsort(hashes_H2[:, 0], kind="stable")
    table = np.zeros(1 << _FILTER_BITS, bool)
    table[_low_bits(hashes_H2[:, 0])] = True
    return Blocks(hashes_H2[order], texts_H[order], table)


def find_blocks(windows_NL: np.ndarray, blocks: Blocks, block_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every place of the windows at which one of the blocks stands: window, offset in it, and block, int64 each."""
    first = _rolling(windows_NL, block_tokens, _KEYS[0])
    windows, offsets = np.nonzero(blocks.filter[_low_bits(first)])
    places = np.searchsorted(blocks.hashes[:, 0], first[windows, offsets])
    places = np.minimum(places, len(blocks.hashes) - 1)
    alike = blocks.hashes[places, 0] == first[windows, offsets]
    windows, offsets, places = windows[alike], offsets[alike], places[alike]
    if not len(windows):
        return windows, offsets, places
    parts = windows_NL[windows[:, None], offsets[:, None] + np.arange(block_tokens)]
    second = _rolling(parts, block_tokens, _KEYS[1])[:, 0]
    same = blocks.hashes[places, 1] == second
    return windows[same], offsets[same], places[same]


def _rolling(windows_NL: np.ndarray, block_tokens: int, key: np.uint64) -> np.ndarray:
    """Hash of the block at each offset of each window, uint64 [N, L - b + 1]."""
    length = windows_NL.shape[1]
    mixed = mix64(windows_NL.astype(np.uint64) + key)
    sums = np.zeros((len(windows_NL), length + 1), np.uint64)
    np.cumsum(mixed * _powers(_MULTIPLIER, length), axis=1, dtype=np.uint64, out=sums[:, 1:])
    inverse = _powers(pow(_MULTIPLIER, -1, 1 << 64), length - block_tokens + 1)
    return (sums[:, block_tokens:] - sums[:, : length - block_tokens + 1]) * inverse


def _powers(base: int, count: int) -> np.ndarray:
    """1, base, base^2, ... modulo 2^64, uint64 [count]."""
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _low_bits(hashes: np.ndarray) -> np.ndarray:
    return (hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)
