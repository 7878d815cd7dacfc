"""Cut held-out tokens into rows for a model, and say which of its predictions count. Arrays in, arrays out.

Shapes: N rows, L the most tokens that a row shows the model, T tokens of a text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rows:
    """What the model sees, what should follow each token of it, and which of those predictions are scored."""

    inputs: np.ndarray
    """int32 [N, L]; 0 behind a row's end, where causality keeps it from changing any score."""
    targets: np.ndarray
    """int32 [N, L]: the token that follows each input; 0 where nothing is scored."""
    scored: np.ndarray
    """bool [N, L]."""

    def __len__(self) -> int:
        return len(self.inputs)

    def part(self, rows: slice | np.ndarray) -> "Rows":
        """Some of the rows."""
        return Rows(self.inputs[rows], self.targets[rows], self.scored[rows])


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, in order."""
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("inputs", "targets", "scored")))


def fixed_rows(windows_NL: np.ndarray, lengths_N: np.ndarray | None = None) -> Rows:
    """One row for each window; every token of a window but its first is scored.

    Args:
        windows_NL: tokens of any integer type.
        lengths_N: tokens of each window, where some are shorter; what lies behind them is not read.
    """
    inputs = windows_NL.astype(np.int32)
    places = np.arange(inputs.shape[1])
    lengths = np.full(len(inputs), inputs.shape[1]) if lengths_N is None else np.asarray(lengths_N)
    inputs = np.where(places < lengths[:, None], inputs, 0)
    targets = np.concatenate([inputs[:, 1:], np.zeros((len(inputs), 1), np.int32)], axis=1)
    return Rows(inputs, targets, places < lengths[:, None] - 1)


def rolling_rows(text_T: np.ndarray, first_target: int, window_tokens: int, stride_tokens: int) -> Rows:
    """Rows in which every token of a text from `first_target` on is scored once, by a model that sees at most
    `window_tokens` before it.

    Each row scores the next `stride_tokens` tokens and shows as much before them as fits. No tokens to score, no rows.

    Args:
        text_T: tokens, with at least one before `first_target`: a prefix, or context that is scored elsewhere.
        stride_tokens: at most `window_tokens`.
    """
    if not 0 < stride_tokens <= window_tokens or first_target < 1:
        raise ValueError(f"stride_tokens {stride_tokens} for windows of {window_tokens}, from token {first_target}")
    firsts = range(first_target, len(text_T), stride_tokens)
    inputs = np.zeros((len(firsts), window_tokens), np.int32)
    targets, scored = np.zeros_like(inputs), np.zeros(inputs.shape, bool)
    for row, first in enumerate(firsts):
        stop = min(first + stride_tokens, len(text_T))
        start = max(0, stop - 1 - window_tokens)
        inputs[row, : stop - 1 - start] = text_T[start : stop - 1]
        place = slice(first - 1 - start, stop - 1 - start)
        targets[row, place], scored[row, place] = text_T[first:stop], True
    return Rows(inputs, targets, scored)


def rolling_stream(
    pieces: Iterable[np.ndarray], window_tokens: int, stride_tokens: int, rows_at_once: int
) -> Iterator[Rows]:
    """`rolling_rows` of a text that comes in pieces, from its second token on, some rows at a time.

    Holds no more of the text than those rows, a window before them and a piece. The rows are those of the whole.
    """
    held, first_target = np.empty(0, np.int32), 1
    for piece in pieces:
        held = np.concatenate([held, piece.astype(np.int32)])
        while len(held) - first_target >= (size := stride_tokens * rows_at_once):
            stop = first_target + size
            yield rolling_rows(held[:stop], first_target, window_tokens, stride_tokens)
            kept = min(stop, window_tokens)
            held, first_target = held[stop - kept :], kept
    if len(held) > first_target:
        yield rolling_rows(held, first_target, window_tokens, stride_tokens)
