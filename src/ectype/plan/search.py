"""A better placement, one axis at a time: what may change without changing the recipe, tried around the best so far.

The cross product of all choices is hundreds of compilations. One pass over the axes is a dozen, and each takes the best
of the axes before it along.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ectype.plan.hardware import Slice
from ectype.plan.record import PlanRecord
from ectype.recipe.compiler_flags import load_flag_sets
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe
from ectype.train.sharding import device_windows, mesh_sizes

BLOCK_TOKENS = (1024, 2048, 4096)
MOST_COPIES = 4
"""Copies of the parameters that a search tries: more of them cost memory and only help where links are slow."""


@dataclass(frozen=True)
class Tried:
    """One placement and its plan."""

    changed: str
    """What differs from the placement that the search began with; empty for that one."""
    placement: Placement
    plan: PlanRecord

    @property
    def seconds(self) -> float:
        """Of a step; infinite where the program does not fit."""
        return float("inf") if self.plan.step is None else self.plan.step.seconds.expected


def search(
    recipe: Recipe, placement: Placement, where: Slice, plan: Callable[[Placement], PlanRecord]
) -> Iterator[Tried]:
    """Each placement as it is tried; the fastest that fits is the result.

    Args:
        plan: compiles and judges one placement.
    """
    best = Tried("", placement, plan(placement))
    yield best
    for field in AXES:
        for value in AXES[field](recipe, best.placement, where):
            if value == getattr(best.placement, field):
                continue
            changed = best.placement.model_copy(update={field: value})
            tried = Tried(_words(placement, changed), changed, plan(changed))
            yield tried
            best = min(best, tried, key=lambda one: one.seconds)


def _remat_sets(recipe: Recipe, placement: Placement, where: Slice) -> list[Any]:
    """What is kept now, with and without the dearest activations to keep and to compute again, and nothing."""
    kept = placement.remat if isinstance(placement.remat, tuple) else ()
    more = (*kept, "up") if "up" not in kept else tuple(name for name in kept if name != "up")
    fewer = [("key", "attention_output"), ("gate", "mlp_output", "up")]
    return [kept, more, *(tuple(name for name in kept if name not in left_out) for left_out in fewer), "full"]


def _micro_batches(recipe: Recipe, placement: Placement, where: Slice) -> list[int | None]:
    mesh = mesh_sizes(placement, where.devices)
    share = device_windows(recipe, mesh)
    return [None, *(size for size in (share // 2, share // 4) if size and share % size == 0)]


def _blocks(recipe: Recipe, placement: Placement, where: Slice) -> list[int | None]:
    return [size for size in BLOCK_TOKENS if recipe.data.sequence_length_tokens % size == 0]


def _meshes(recipe: Recipe, placement: Placement, where: Slice) -> list[Any]:
    rows = where.devices // (placement.mesh.tensor * placement.mesh.context)
    copies = [count for count in range(1, MOST_COPIES + 1) if rows % count == 0]
    return [placement.mesh.model_copy(update={"data": count, "fsdp": rows // count}) for count in copies]


def _flags(recipe: Recipe, placement: Placement, where: Slice) -> list[str]:
    own = where.hardware.chip.name
    return [name for name in load_flag_sets() if name == own or name.startswith(f"{own}-")]


AXES: dict[str, Callable[[Recipe, Placement, Slice], list[Any]]] = {
    "remat": _remat_sets, "micro_batch_windows": _micro_batches, "attention_block_tokens": _blocks,
    "mesh": _meshes, "compiler_flags": _flags,
}  # fmt: skip
"""Fields of a placement that a search changes, in its order, with the values that it tries."""


def _words(before: Placement, after: Placement) -> str:
    def word(value: Any) -> str:
        if isinstance(value, tuple):
            return "+".join(value)
        return str(value.model_dump()) if hasattr(value, "model_dump") else str(value)

    changed = [field for field in AXES if getattr(before, field) != getattr(after, field)]
    return ", ".join(f"{field}={word(getattr(after, field))}" for field in changed)
