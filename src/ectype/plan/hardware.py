"""What the step-time model knows of a chip beyond its peak, from `hardware.csv`, and slices by name."""

import csv
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ectype.errors import EctypeError
from ectype.recipe.chips import Chip, load_chip


@dataclass(frozen=True)
class Hardware:
    """One TPU generation."""

    chip: Chip
    libtpu_name: str
    torus_axes: int
    matrix_units: int
    """Per JAX device."""
    matrix_unit_width: int
    hbm_bytes_per_second: float
    """Per JAX device."""
    ici_bytes_per_second: float
    """What one chip can receive from all its neighbours; it can send as much at the same time."""

    @property
    def clock_hz(self) -> float:
        """The rate at which the matrix units reach the vendor's peak: each takes width^2 products a cycle."""
        return self.chip.peak_flops_per_device / (2 * self.matrix_units * self.matrix_unit_width**2)


@dataclass(frozen=True)
class Slice:
    """A slice of a TPU generation: `shape` counts chips along each axis of its torus."""

    hardware: Hardware
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """As the compiler knows it, such as `tpu7x:4x8x8`."""
        return f"{self.hardware.libtpu_name}:{'x'.join(map(str, self.shape))}"

    @property
    def chips(self) -> int:
        """All chips of the slice."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """JAX devices of the slice."""
        return self.chips * self.hardware.chip.devices_per_chip


@lru_cache
def load_hardware() -> dict[str, Hardware]:
    """The rows of the table by chip."""
    with open(Path(__file__).parent / "hardware.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {
        row["chip"]: Hardware(
            load_chip(row["chip"]), row["libtpu_name"], int(row["torus_axes"]),
            int(row["matrix_units_per_device"]), int(row["matrix_unit_width"]),
            float(row["hbm_tb_per_second_per_device"]) * 1e12,
            # The table holds the vendor's figure for both directions together.
            float(row["ici_gb_per_second_per_chip"]) * 1e9 / 2,
        )
        for row in rows
    }  # fmt: skip


def parse_slice(text: str) -> Slice:
    """The slice that a name such as `v5p:4x4x8` means.

    Raises:
        EctypeError: no such generation, or a shape with another count of axes.
    """
    generations = load_hardware()
    match = re.fullmatch(r"([a-z0-9]+):(\d+(?:x\d+)*)", text)
    if match is None or match[1] not in generations:
        raise EctypeError(
            f"topology {text!r}", f"CHIP:SHAPE with a chip of {', '.join(generations)}",
            "for example --topology v5p:4x4x8",
        )  # fmt: skip
    hardware, shape = generations[match[1]], tuple(int(size) for size in match[2].split("x"))
    if len(shape) != hardware.torus_axes or 0 in shape:
        raise EctypeError(
            f"topology {text!r}", f"{hardware.torus_axes} sizes above 0, chips along each axis of the torus",
            f"for example --topology {match[1]}:{'x'.join(['2', '2', '1'][: hardware.torus_axes])}",
        )  # fmt: skip
    return Slice(hardware, shape)


def slice_of(hardware: Hardware, devices: int) -> Slice:
    """The slice of so many devices whose sides differ least, each a power of two.

    Raises:
        EctypeError: no such slice.
    """
    chips, left = divmod(devices, hardware.chip.devices_per_chip)
    if left or chips < 1 or chips & (chips - 1):
        raise EctypeError(
            f"{devices} devices of {hardware.libtpu_name}",
            f"a power of two of chips, each {hardware.chip.devices_per_chip} devices", "choose another count",
        )  # fmt: skip
    doublings, axes = chips.bit_length() - 1, hardware.torus_axes
    sides = sorted(2 ** ((doublings + axis) // axes) for axis in range(axes))
    # The names count sides upwards, but for the smallest slices, which lie flat: 2x2x1.
    return Slice(hardware, tuple(sides if sides[0] > 1 else reversed(sides)))
