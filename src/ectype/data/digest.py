"""The digest of consumed windows. Pure: arrays in, arrays out.

Each row of a batch hashes (batch number, row, window id) to two 64-bit words; a digest is their sum mod 2**64, word
by word. Sums of parts therefore add up to the sum of the whole, however a batch is split among processes, and a run's
digest is the sum over its steps. Two different sets of reads agree by accident with probability near 2**-128.
"""

import numpy as np

from ectype.data.permutation import mix64

_KEYS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_BATCH_KEY, _READ_KEY = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)

_CACHED_IDS = 1 << 14


def row_words(batch_numbers: np.ndarray, rows: np.ndarray, window_ids: np.ndarray) -> np.ndarray:
    """The two words of each read; arguments broadcast to one shape. [..., 2] uint64."""
    batches = np.asarray(batch_numbers, np.uint64)
    reads = np.asarray(rows, np.uint64) << np.uint64(32) | np.asarray(window_ids, np.uint64)
    mixed = mix64(reads + _READ_KEY)  # a bijection: nothing is lost before the two words part
    return np.stack([mix64(mix64(batches * _BATCH_KEY + key) ^ mixed) for key in _KEYS], axis=-1)


def batch_digest(batch_number: int, rows: np.ndarray, window_ids: np.ndarray) -> np.ndarray:
    """Digest of the rows ([b]) of one batch that hold `window_ids` ([b]). [2] uint64."""
    return row_words(np.full(1, batch_number, np.uint64), rows, window_ids).sum(axis=0, dtype=np.uint64)


def block_digests(first_batch: int, rows: np.ndarray, window_ids_NB: np.ndarray) -> np.ndarray:
    """Digests of N consecutive batches whose rows ([b]) hold `window_ids_NB` ([N, b]). [N, 2] uint64."""
    batches = np.arange(first_batch, first_batch + len(window_ids_NB), dtype=np.uint64)
    out = np.empty((len(batches), 2), np.uint64)
    step = max(1, _CACHED_IDS // max(1, len(rows)))
    for start in range(0, len(batches), step):
        part = slice(start, start + step)
        words = row_words(batches[part, None], rows, window_ids_NB[part])
        words.sum(axis=1, dtype=np.uint64, out=out[part])
    return out


def hexadecimal(digest: np.ndarray) -> str:
    """A digest ([2] uint64) as 32 hexadecimal digits."""
    return f"{int(digest[0]):016x}{int(digest[1]):016x}"
