"""Read windows of token files. Positioned reads, not memory maps: a file cut under us is an error, never a crash."""

import os
import time
from collections import OrderedDict
from typing import Any

import numpy as np

from ectype.data.storage import ends_early, is_remote, read_ranges
from ectype.data.tokenindex import TokenIndex
from ectype.errors import EctypeError

_OPEN_FILES = 128
_REMOTE_TRIES = 4


class WindowReader:
    """Reads windows of one index. Holds at most 128 files open, and opens them again in another process."""

    def __init__(self, index: TokenIndex) -> None:
        self._index = index
        self._descriptors: OrderedDict[int, int] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"_index": self._index, "_descriptors": OrderedDict()}

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; reading opens them again."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read(self, window_ids: np.ndarray) -> np.ndarray:
        """Tokens of the windows, in order. [b, L] int32.

        Raises:
            EctypeError: a file is missing, ends early, or holds an id outside the id space (file and offset named).
        """
        index, length = self._index, self._index.sequence_length_tokens
        file_numbers, offsets = index.locate(window_ids)
        tokens = np.empty((len(window_ids), length), np.dtype(index.dtype).newbyteorder("<"))
        remote = []
        for row, (number, offset) in enumerate(zip(file_numbers.tolist(), offsets.tolist(), strict=True)):
            if is_remote(index.files[number].path):
                remote.append((row, number, offset))
            else:
                self._read_local(tokens[row], number, offset)
        self._read_remote(tokens, remote)
        self._check_range(tokens, file_numbers, offsets)
        return tokens.view(np.int32) if tokens.dtype.itemsize == 4 else tokens.astype(np.int32)

    def read_span(self, file_number: int, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of one file. [stop - start] of the index's dtype."""
        tokens = np.empty(stop - start, np.dtype(self._index.dtype).newbyteorder("<"))
        if is_remote(self._index.files[file_number].path):
            self._read_remote(tokens[None], [(0, file_number, start)])
        else:
            self._read_local(tokens, file_number, start)
        return tokens

    def _read_local(self, out: np.ndarray, number: int, offset: int) -> None:
        file = self._index.files[number]
        start = file.header_bytes + offset * out.dtype.itemsize
        buffer, done = out.view(np.uint8).data, 0
        while done < len(buffer):
            try:
                count = os.preadv(self._descriptor(number), [buffer[done:]], start + done)
            except OSError as error:
                raise EctypeError(
                    f"{file.path}: {error}", "the file that was indexed", "restore the file or its mount, then resume"
                ) from None
            if count == 0:
                raise ends_early(file.path, start, start + len(buffer))
            done += count

    def _read_remote(self, tokens: np.ndarray, wanted: list[tuple[int, int, int]]) -> None:
        for number in sorted({number for _, number, _ in wanted}):
            rows = [(row, offset) for row, wanted_number, offset in wanted if wanted_number == number]
            file, item = self._index.files[number], tokens.dtype.itemsize
            starts = [file.header_bytes + offset * item for _, offset in rows]
            parts = _retried(file.path, [(start, start + tokens.shape[1] * item) for start in starts])
            for (row, _), part in zip(rows, parts, strict=True):
                tokens[row] = np.frombuffer(part, tokens.dtype)

    def _descriptor(self, number: int) -> int:
        if number in self._descriptors:
            self._descriptors.move_to_end(number)
            return self._descriptors[number]
        if len(self._descriptors) >= _OPEN_FILES:
            os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors[number] = os.open(self._index.files[number].path, os.O_RDONLY)
        return self._descriptors[number]

    def _check_range(self, tokens: np.ndarray, file_numbers: np.ndarray, offsets: np.ndarray) -> None:
        if tokens.size == 0 or tokens.max() < self._index.vocab_size:
            return
        row, column = np.argwhere(tokens >= self._index.vocab_size)[0]
        raise EctypeError(
            f"{self._index.files[file_numbers[row]].path}: id {tokens[row, column]} at token {offsets[row] + column}",
            f"ids below {self._index.vocab_size}", "the file was damaged or has another width: restore it",
        )  # fmt: skip


def _retried(path: str, ranges: list[tuple[int, int]]) -> list[bytes]:
    """Remote reads fail now and then; a few tries a second apart and doubling tell that from a lost file."""
    for attempt in range(_REMOTE_TRIES - 1):
        try:
            return read_ranges(path, ranges)
        except EctypeError:
            time.sleep(2**attempt)
    return read_ranges(path, ranges)
