"""Which rows of the global batch a process reads."""

from typing import Any

import numpy as np

from ectype.errors import EctypeError


def process_rows(sharding: Any, global_batch_windows: int) -> np.ndarray:
    """Rows that this process's addressable devices ask for under `sharding`, each once, ascending. [b] int64.

    Args:
        sharding: a `jax.sharding.Sharding` of the token batch [B, L]; rows that several devices hold are read once.
    """
    # Any length that every mesh axis divides will do: only the split of the first dimension is asked for.
    length = len(sharding.device_set)
    rows = np.zeros(global_batch_windows, bool)
    for index in sharding.addressable_devices_indices_map((global_batch_windows, length)).values():
        rows[index[0]] = True
    return np.flatnonzero(rows)


def recorded_rows(sharding: Any, global_batch_windows: int, process: int) -> np.ndarray:
    """Of the rows that `process` reads, those that it records: its device is the first of all that hold them.

    Where devices of several processes hold one row, each of them reads it, and one alone records it. [b] int64.
    """
    rows, seen = np.zeros(global_batch_windows, bool), set()
    for device, index in sharding.devices_indices_map((global_batch_windows, len(sharding.device_set))).items():
        bounds = index[0].indices(global_batch_windows)
        if bounds not in seen:
            seen.add(bounds)
            rows[index[0]] = device.process_index == process
    return np.flatnonzero(rows)


def host_rows(host: int, hosts: int, global_batch_windows: int) -> np.ndarray:
    """Rows of host `host` when `hosts` hosts share the batch in equal contiguous parts. [B / hosts] int64.

    Raises:
        EctypeError: the batch does not divide among the hosts.
    """
    if hosts < 1 or global_batch_windows % hosts:
        raise EctypeError(
            f"{hosts} hosts for batches of {global_batch_windows} windows", "a host count that divides the batch",
            "choose another host count or data.global_batch_windows",
        )  # fmt: skip
    share = global_batch_windows // hosts
    return np.arange(host * share, (host + 1) * share)
