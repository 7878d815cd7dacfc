"""OLMo-core's document packing: best-fit decreasing (Ding et al. 2024, arXiv:2404.10830). Pure."""

import random
from bisect import bisect_left, insort
from collections import deque

import numpy as np

from ectype.recipe.spec import Packing


def permuted_files(count: int, seed: int | None) -> list[int]:
    """File numbers in the order of packing: Python's own shuffle of range(count) by `seed`; None keeps the order."""
    numbers = list(range(count))
    if seed is not None:
        random.Random(seed).shuffle(numbers)
    return numbers


def cut_documents(spans: np.ndarray, length: int, rule: Packing) -> np.ndarray:
    """Spans ([n, 2] int64) no longer than `length`: the excess is discarded (`truncate`) or starts new documents."""
    if rule.long_documents == "truncate":
        return np.stack([spans[:, 0], np.minimum(spans[:, 1], spans[:, 0] + length)], axis=1)
    pieces = -(-(spans[:, 1] - spans[:, 0]) // length)
    owner = np.repeat(np.arange(len(spans)), pieces)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = spans[owner, 0] + number * length
    return np.stack([starts, np.minimum(starts + length, spans[owner, 1])], axis=1)


def longest_first(lengths: np.ndarray, rule: Packing) -> np.ndarray:
    """Positions ([n]) of documents by falling length.

    Equal lengths: `stable` keeps them in file order; `numpy` leaves them as NumPy's default sort does on this machine,
    which is what OLMo-core used and which differs between processors.
    """
    return np.argsort(-lengths.astype(np.int64), kind="stable" if rule.ties == "stable" else None)


def best_fit(lengths: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Put documents, in the given order, into windows of `length` tokens.

    Each goes where the least sufficient space is left; among windows of equal space, to the longest waiting one.

    Args:
        lengths: [n], each from 1 to `length`.

    Returns:
        Document numbers grouped by window in packing order ([n] int64), and where each window's group begins
        ([windows + 1] int64).
    """
    windows: list[list[int]] = []
    waiting: dict[int, deque[int]] = {}
    spaces: list[int] = []
    for document, needed in enumerate(lengths.tolist()):
        place = bisect_left(spaces, needed)
        if place == len(spaces):
            space, window = length, len(windows)
            windows.append([])
        else:
            space = spaces[place]
            window = waiting[space].popleft()
            if not waiting[space]:
                del spaces[place]
        windows[window].append(document)
        left = space - needed
        if left:
            queue = waiting.setdefault(left, deque())
            if not queue:
                insort(spaces, left)
            queue.append(window)
    sizes = np.fromiter(map(len, windows), np.int64, len(windows))
    documents = np.fromiter((d for window in windows for d in window), np.int64, len(lengths))
    return documents, np.concatenate([[0], np.cumsum(sizes)])
