"""Cut held-out tokens into the fixed windows of the evaluation protocol. Arrays in, arrays out.

Shapes: N windows, L window length, T tokens of a domain.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Windows:
    """Windows of one domain: `tokens` int32 [N, L], and `targets` int64 [N], the predictions scored in each."""

    tokens: np.ndarray
    targets: np.ndarray


def cut_windows(tokens_T: np.ndarray, window_tokens: int, remainder: str = "drop") -> Windows:
    """Non-overlapping windows of `window_tokens`, in order; within each, every token but the first is a target.

    `remainder` "drop" leaves out the tokens behind the last whole window, as OLMo-core does; "score" appends them as
    one short window, filled up with id 0 behind its last token, where causality keeps it from changing any score.
    """
    if window_tokens < 2:
        raise ValueError(f"window_tokens {window_tokens}: a window needs two tokens to hold one target")
    whole = len(tokens_T) // window_tokens
    windows_NL = tokens_T[: whole * window_tokens].reshape(whole, window_tokens).astype(np.int32)
    targets_N = np.full(whole, window_tokens - 1, np.int64)
    rest = tokens_T[whole * window_tokens :]
    if remainder == "score" and len(rest) > 1:
        last_L = np.zeros(window_tokens, np.int32)
        last_L[: len(rest)] = rest
        windows_NL = np.concatenate([windows_NL, last_L[None]])
        targets_N = np.append(targets_N, len(rest) - 1)
    return Windows(windows_NL, targets_N)


def scored_mask(targets_N: np.ndarray, window_tokens: int) -> np.ndarray:
    """bool [N, L - 1]: which predictions of each window count. Prediction i is for token i + 1."""
    return np.arange(window_tokens - 1)[None, :] < targets_N[:, None]
