"""Which collectives a program runs, over which axes of the mesh, and how long the links need for them.

Lower bounds by what a chip must receive over all its links at once, as ring or bidirectional algorithms on a torus
reach for large arrays (Chan et al. 2007, doi:10.1002/cpe.1206): a gather or a scatter over N devices moves (N-1)/N of
the whole array, a reduction both ways.
"""

import math
import re
from collections.abc import Mapping
from itertools import combinations

import numpy as np

from ectype.plan.hardware import Hardware
from ectype.plan.program import COLLECTIVES, Executed, Program
from ectype.recipe.spec import Section


class Collective(Section):
    """All collectives of one kind over the same mesh axes in one step."""

    kind: str
    axes: tuple[str, ...]
    asynchronous: bool
    calls: int
    received_bytes: float
    """By one device in one step."""
    seconds: float
    """That the links need at their nominal rate."""


def collectives(program: Program, mesh: Mapping[str, int], hardware: Hardware) -> list[Collective]:
    """The step's collectives, summed by kind, axes and whether compute runs beside them."""
    groups: dict[tuple[str, tuple[str, ...], bool], list[float]] = {}
    for one in program.executed():
        opcode = one.instruction.opcode.removesuffix("-start")
        if opcode not in COLLECTIVES:
            continue
        kind = "reduce-scatter" if _scatters(one) else opcode
        axes, size = _axes(one.instruction.text, mesh)
        received = _received_bytes(kind, one, size)
        key = (kind, axes, one.instruction.opcode.endswith("-start") or "async" in (one.fused_into or ""))
        total = groups.setdefault(key, [0, 0.0])
        total[0] += one.times
        total[1] += one.times * received
    rate = hardware.ici_bytes_per_second / hardware.chip.devices_per_chip
    return [
        Collective(
            kind=kind, axes=axes, asynchronous=beside, calls=int(calls), received_bytes=received,
            seconds=received / rate,
        )
        for (kind, axes, beside), (calls, received) in sorted(groups.items())
    ]  # fmt: skip


def _scatters(one: Executed) -> bool:
    """XLA writes a fused reduce-scatter as a computation that reduces everywhere and keeps a slice."""
    return one.instruction.opcode == "all-reduce" and "reduce-scatter" in (one.fused_into or "")


def _received_bytes(kind: str, one: Executed, group: int) -> float:
    instruction, share = one.instruction, (group - 1) / group if group else 0.0
    size = instruction.shape_bytes
    if instruction.opcode.endswith("-start"):
        # The result of a start is its operand, its result and counters.
        size = size * group // (group + 1) if kind == "all-gather" and group else size // 2
    if kind == "reduce-scatter" and instruction.opcode.startswith("reduce-scatter"):
        size *= group
    if kind == "all-reduce":
        return 2 * size * share
    return size if kind == "collective-permute" else size * share


def _axes(text: str, mesh: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """The mesh axes whose devices talk to each other, and their number; by the first group of devices."""
    group = _first_group(text)
    sizes = tuple(mesh.values())
    if group is None:
        return ("pairs",), 2
    if not group:
        group = tuple(range(math.prod(sizes)))
    places = np.array(np.unravel_index(np.array(group), sizes))
    moving = [name for name, row in zip(mesh, places, strict=True) if len(set(row.tolist())) > 1]
    for count in range(1, len(mesh) + 1):
        for axes in combinations([name for name, size in mesh.items() if size > 1], count):
            if math.prod(mesh[name] for name in axes) == len(group) and set(moving) == set(axes):
                return axes, len(group)
    return (tuple(moving) or ("one device",)), len(group)


def _first_group(text: str) -> tuple[int, ...] | None:
    """Ids of the first group; empty: all devices; None: pairs of a permutation."""
    if "source_target_pairs" in text:
        return None
    explicit = re.search(r"replica_groups=\{\{([\d,]*)\}", text)
    if explicit is not None:
        return tuple(int(number) for number in explicit[1].split(",") if number)
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota is None:
        return ()
    shape = [int(number) for number in iota[1].split(",")]
    ids = np.arange(math.prod(shape)).reshape([int(number) for number in iota[2].split(",")])
    if iota[3]:
        ids = ids.transpose([int(number) for number in iota[3].split(",")])
    return tuple(ids.reshape(shape)[0].tolist())
