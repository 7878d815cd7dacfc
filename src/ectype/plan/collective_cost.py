"""Which collectives a program runs, over which axes of the mesh, and how long the links need for them.

Lower bounds by what a chip must receive over all its links at once, as ring or bidirectional algorithms on a torus
reach for large arrays (Chan et al. 2007, doi:10.1002/cpe.1206): a gather or a scatter over N devices moves (N-1)/N of
the whole array, a reduction both ways.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ectype.plan.hardware import Hardware
from ectype.plan.program import COLLECTIVES, Instruction, Program
from ectype.recipe.spec import Section

Places = Sequence[Sequence[int]]
"""By device: its chip's coordinates on the torus, then its number within the chip."""


class Collective(Section):
    """All collectives of one kind over the same mesh axes in one step."""

    kind: str
    axes: tuple[str, ...]
    asynchronous: bool
    """Whether the program starts it, goes on, and waits for it later."""
    calls: int
    received_bytes: float
    """By one device in one step."""
    seconds: float
    """That the links between them need at their nominal rate."""


@dataclass(frozen=True)
class Links:
    """The devices of a program, in its order, and what lies between them."""

    mesh: Mapping[str, int]
    hardware: Hardware
    places: Places | None = None
    """None: every collective uses all links of a chip. Else those along the axes of the torus that it spans."""


@dataclass(frozen=True)
class Transfer:
    """What one call of a collective moves."""

    kind: str
    axes: tuple[str, ...]
    received_bytes: float
    seconds: float


def collectives(program: Program, links: Links) -> list[Collective]:
    """The step's collectives, summed by kind, axes and whether the program waits for them at once."""
    groups: dict[tuple[str, tuple[str, ...], bool], list[float]] = {}
    for one in program.executed():
        moved = transfer(one.instruction, one.fused_into, links)
        if moved is None:
            continue
        total = groups.setdefault((moved.kind, moved.axes, one.beside), [0, 0.0, 0.0])
        total[0] += one.times
        total[1] += one.times * moved.received_bytes
        total[2] += one.times * moved.seconds
    return [
        Collective(
            kind=kind, axes=axes, asynchronous=beside, calls=int(calls), received_bytes=received, seconds=seconds
        )
        for (kind, axes, beside), (calls, received, seconds) in sorted(groups.items())
    ]


def transfer(instruction: Instruction, fused_into: str | None, links: Links) -> Transfer | None:
    """What an instruction moves between devices, or None."""
    opcode = instruction.opcode.removesuffix("-start")
    if opcode not in COLLECTIVES:
        return None
    # XLA writes a fused reduce-scatter as a computation that reduces everywhere and keeps a slice.
    scatters = opcode == "all-reduce" and "reduce-scatter" in (fused_into or "")
    kind = "reduce-scatter" if scatters else opcode
    group = _first_group(instruction.text, math.prod(links.mesh.values()))
    received = _received_bytes(kind, instruction, len(group) or 2)
    return Transfer(kind, _axes(group, links.mesh), received, received / _rate(group, links))


def _rate(group: tuple[int, ...], links: Links) -> float:
    """Bytes a second that a device can receive from such a group; the devices of a chip share its links."""
    hardware = links.hardware
    device = hardware.ici_bytes_per_second / hardware.chip.devices_per_chip
    if links.places is None or not group:
        return device
    spanned = sum(len(set(along)) > 1 for along in list(zip(*(links.places[one] for one in group), strict=True))[:-1])
    return device * max(spanned, 1) / hardware.torus_axes


def _received_bytes(kind: str, instruction: Instruction, group: int) -> float:
    share, size = (group - 1) / group, instruction.shape_bytes
    if instruction.opcode.endswith("-start"):
        # The result of a start is its operand, its result and counters.
        size = size * group // (group + 1) if kind == "all-gather" else size // 2
    if kind == "reduce-scatter" and instruction.opcode.startswith("reduce-scatter"):
        size *= group
    if kind == "all-reduce":
        return 2 * size * share
    return size if kind == "collective-permute" else size * share


def _axes(group: tuple[int, ...], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the devices of a group lie; `pairs` of a permutation."""
    if not group:
        return ("pairs",)
    places = np.unravel_index(np.array(group), tuple(mesh.values()))
    return tuple(name for name, row in zip(mesh, places, strict=True) if len(set(row.tolist())) > 1) or ("one device",)


def _first_group(text: str, devices: int) -> tuple[int, ...]:
    """Ids of the first group, all devices where none is written; empty: pairs of a permutation."""
    if "source_target_pairs" in text:
        return ()
    explicit = re.search(r"replica_groups=\{\{([\d,]*)\}", text)
    if explicit is not None:
        return tuple(int(number) for number in explicit[1].split(",") if number)
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota is None:
        return tuple(range(devices))
    shape = [int(number) for number in iota[1].split(",")]
    ids = np.arange(math.prod(shape)).reshape([int(number) for number in iota[2].split(",")])
    if iota[3]:
        ids = ids.transpose([int(number) for number in iota[3].split(",")])
    return tuple(ids.reshape(shape)[0].tolist())
