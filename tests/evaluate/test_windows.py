"""Windows cover each token once, and only whole windows count unless the protocol says otherwise."""

import numpy as np
import pytest

from ectype.evaluate.windows import cut_windows, scored_mask


def test_windows_do_not_overlap_and_lose_one_target_each() -> None:
    windows = cut_windows(np.arange(33, dtype=np.uint16), 16)
    assert windows.tokens.tolist() == [list(range(16)), list(range(16, 32))]
    assert windows.tokens.dtype == np.int32
    assert windows.targets.sum() == 30


def test_a_scored_remainder_is_padded_and_masked() -> None:
    windows = cut_windows(np.arange(1, 21, dtype=np.uint16), 8, "score")
    assert windows.tokens[-1].tolist() == [17, 18, 19, 20, 0, 0, 0, 0]
    assert windows.targets.tolist() == [7, 7, 3]
    assert scored_mask(windows.targets, 8)[-1].tolist() == [True] * 3 + [False] * 4


@pytest.mark.parametrize("tokens", [16, 17])
def test_a_remainder_without_a_target_adds_no_window(tokens: int) -> None:
    assert len(cut_windows(np.zeros(tokens, np.uint16), 8, "score").targets) == 2


def test_a_short_domain_has_no_window() -> None:
    assert len(cut_windows(np.zeros(7, np.uint16), 8).targets) == 0


def test_a_window_of_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        cut_windows(np.zeros(7, np.uint16), 1)
