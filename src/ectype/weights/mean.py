"""The mean of parameters, as the reference takes it."""

from collections.abc import Sequence

import numpy as np


def mean_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Mean of arrays of one shape and one element type: summed in float32 in the order given, divided, cast back.

    The arithmetic of OLMo-core's script that merges checkpoints.
    """
    total = arrays[0].astype(np.float32)
    for array in arrays[1:]:
        total += array.astype(np.float32, copy=False)
    total /= np.float32(len(arrays))
    return total.astype(arrays[0].dtype, copy=False)
