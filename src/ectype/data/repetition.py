"""OLMo-core's repeated-n-gram filter, exactly, at memory speed. Pure. Shapes: B windows, L tokens.

OLMo-core folds a window into rows of p tokens and joins neighbouring equal rows with the equal tokens before and after
them. Unfolded, that is a maximal run of positions i with a[i] == a[i - p]; a run of m positions counts as m // p + 1
repetitions, and only runs that hold a whole aligned row and count over two are seen at all. So a window is rejected
iff for some period p a run has at least (max(max_count, 3) - 1) * p positions: such a run holds an aligned row.
"""

import numpy as np

from ectype.recipe.spec import RepetitionFilter

_PROBES_A_RUN = 4
"""A run long enough to reject covers at least this many of the sampled positions, all in a row."""


def keep_windows(tokens_BL: np.ndarray, rule: RepetitionFilter) -> np.ndarray:
    """Which windows the filter keeps. [B] bool.

    Args:
        tokens_BL: unsigned or int32 token ids.
        rule: periods from `min_period` to the smaller of `max_period` and a third of the window.
    """
    B, L = tokens_BL.shape
    keep = np.ones(B, bool)
    for period in range(rule.min_period, min(rule.max_period, L // 3) + 1):
        run = (max(rule.max_count, 3) - 1) * period
        if run > L - period:
            continue
        for row in np.flatnonzero(keep & _may_hold_run(tokens_BL, period, run)):
            keep[row] = longest_run(tokens_BL[row], period) < run
    return keep


def longest_run(tokens_L: np.ndarray, period: int) -> int:
    """Length of the longest run of consecutive i with tokens[i] == tokens[i - period]."""
    breaks = np.flatnonzero(tokens_L[period:] != tokens_L[:-period])
    if not len(breaks):
        return len(tokens_L) - period
    inner = int(np.diff(breaks).max()) - 1 if len(breaks) > 1 else 0
    return max(int(breaks[0]), len(tokens_L) - period - 1 - int(breaks[-1]), inner)


def _may_hold_run(tokens_BL: np.ndarray, period: int, run: int) -> np.ndarray:
    """Which windows might hold a run of `run` positions: a cheap necessary condition. [B] bool.

    Positions are sampled every `stride`; a run covers at least run // stride consecutive samples wherever it lies.
    """
    stride = max(1, run // _PROBES_A_RUN)
    covered = run // stride
    equal = tokens_BL[:, period::stride] == tokens_BL[:, : tokens_BL.shape[1] - period : stride]
    together = equal[:, : equal.shape[1] - covered + 1].copy()
    for shift in range(1, covered):
        together &= equal[:, shift : shift + together.shape[1]]
    return together.any(axis=1)
