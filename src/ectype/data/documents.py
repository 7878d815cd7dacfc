"""Documents inside windows. Pure. Shapes: B windows, L tokens."""

import numpy as np


def segment_ids(tokens_BL: np.ndarray, eos_id: int) -> np.ndarray:
    """Which document of its window each token belongs to, from 0. [B, L] int32.

    A document ends with its separator; what follows the last separator is a document of its own, padding included
    (OLMo-core's get_document_lengths). Attention stays within equal numbers.
    """
    ends = tokens_BL == eos_id
    segments = np.zeros(tokens_BL.shape, np.int32)
    np.cumsum(ends[:, :-1], axis=1, dtype=np.int32, out=segments[:, 1:])
    return segments


def document_lengths(tokens_L: np.ndarray, eos_id: int) -> np.ndarray:
    """Lengths of the documents of one window, in order. [documents] int64; their sum is L."""
    ends = np.flatnonzero(tokens_L == eos_id) + 1
    if not len(ends) or ends[-1] != len(tokens_L):
        ends = np.append(ends, len(tokens_L))
    return np.diff(ends, prepend=0)


def document_spans(separators: np.ndarray) -> np.ndarray:
    """[start, end) of each document of a file, from the positions of its separators. [documents, 2] int64.

    Tokens after the last separator belong to no document: OLMo-core's packing drops them.
    """
    ends = separators.astype(np.int64) + 1
    return np.stack([np.concatenate([[0], ends])[: len(ends)], ends], axis=1)
