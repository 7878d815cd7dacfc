"""Vendor figures of accelerators, from `chips.csv`: dense bfloat16 peak and memory per JAX device."""

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ectype.errors import EctypeError


@dataclass(frozen=True)
class Chip:
    """One row of the table. An Ironwood chip is two JAX devices."""

    name: str
    devices_per_chip: int
    peak_flops_per_device: float
    memory_bytes_per_device: int


@lru_cache
def load_chip(name: str) -> Chip:
    """The chip called `name`.

    Raises:
        EctypeError: the table has none of that name.
    """
    with open(Path(__file__).parent / "chips.csv", newline="") as stream:
        rows = {row["chip"]: row for row in csv.DictReader(stream)}
    if name not in rows:
        raise EctypeError(f"chip {name!r}", f"one of {', '.join(rows)}", "correct the placement's `chip`")
    row = rows[name]
    return Chip(
        name, int(row["devices_per_chip"]), float(row["peak_tflops_per_device"]) * 1e12,
        int(float(row["memory_gb_per_device"]) * 1e9),
    )  # fmt: skip
