"""Work in flight behind a reading loop: bounded in number, finished in order."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Pipeline:
    """Groups of futures, of which at most `limit` are pending; callbacks run once all before them are done."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: deque[Sequence[Any] | Callable[[], None]] = deque()
        self._groups = 0

    def add(self, futures: Sequence[Any]) -> None:
        """Take in one group; waits for the oldest when there are too many."""
        self._pending.append(futures)
        self._groups += 1
        while self._groups > self._limit:
            self._advance()

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` when every group added so far is done."""
        self._pending.append(callback)

    def finish(self) -> None:
        """Wait for all that is pending."""
        while self._pending:
            self._advance()

    def _advance(self) -> None:
        entry = self._pending.popleft()
        if callable(entry):
            entry()
            return
        for future in entry:
            future.result()
        self._groups -= 1


def as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data
