"""A keyed permutation of range(n) in constant memory with random access. Pure: integers in, integers out.

A Feistel network over a x a >= n (alternating additive rounds, Luby & Rackoff 1988) with cycle walking (Black & Rogaway
2002, "Ciphers with Arbitrary Finite Domains"): an output outside range(n) is permuted again until it falls inside. The
round function is the finaliser of SplitMix64 (Steele, Lea & Flood 2014) under a round key from SHA-256.
"""

import hashlib
from math import isqrt

import numpy as np

_ROUNDS = 6
_CHUNK = 1 << 16
"""Positions at a time: small enough that the rounds stay in cache."""


def permute(positions: np.ndarray, size: int, key: str) -> np.ndarray:
    """The ids ([n] uint64) at `positions` ([n], below `size`) of the permutation of range(size) that `key` names."""
    positions = np.asarray(positions, np.uint64)
    keys = [_round_key(key, number) for number in range(_ROUNDS)]
    side = np.uint64(max(1, isqrt(size - 1) + 1))
    out = np.empty_like(positions)
    for start in range(0, len(positions), _CHUNK):
        part = _network(positions[start : start + _CHUNK], side, keys)
        while len(outside := np.flatnonzero(part >= size)):
            part[outside] = _network(part[outside], side, keys)
        out[start : start + _CHUNK] = part
    return out


def mix64(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser of each uint64: a bijection whose every output bit depends on every input bit."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _network(values: np.ndarray, side: np.uint64, keys: list[np.uint64]) -> np.ndarray:
    left, right = values // side, values % side
    for key in keys:
        # The high half of the mixed word, scaled to range(side): no division, bias below 2**-32 of a step.
        mixed = mix64(right + key)
        mixed >>= np.uint64(32)
        mixed *= side
        mixed >>= np.uint64(32)
        mixed += left
        np.subtract(mixed, side, out=mixed, where=mixed >= side)
        left, right = right, mixed
    return left * side + right


def _round_key(key: str, number: int) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(f"{key}/{number}".encode()).digest()[:8], "little"))
