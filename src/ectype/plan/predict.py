"""From a compiled program to seconds: compute by the compiler's cycles, attention and links by models of few constants.

The step takes the compute, the attention kernels and what of the collectives the program's own schedule leaves without
compute beside it. Every constant that is not the vendor's has a range in `assumptions.json`; the ranges make the band.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from ectype.artifacts import read_json
from ectype.plan import attention_cost as kernels
from ectype.plan.collective_cost import Collective, Links, collectives, transfer
from ectype.plan.hardware import Hardware
from ectype.plan.program import UNKNOWN_CYCLES, Executed, Instruction, Program, shape_bytes
from ectype.plan.timeline import run_through
from ectype.recipe.spec import Model, Section

KERNEL_TARGET = "tpu_custom_call"
_PRODUCTS_OF_KERNEL = {
    "splash_mha_fwd": kernels.FORWARD_PRODUCTS, "splash_mha_dq": kernels.QUERY_GRADIENT_PRODUCTS,
    "splash_mha_dkv": kernels.KEY_VALUE_GRADIENT_PRODUCTS,
}  # fmt: skip


class Band(Section):
    """An expectation and the range that the assumptions allow."""

    expected: float
    low: float
    high: float


class Assumption(Section):
    """One constant, its range, and why."""

    expected: float
    low: float
    high: float
    source: str


class Assumptions(Section):
    """The table `assumptions.json`."""

    format: Literal[1]
    kernel_efficiency: Assumption
    link_efficiency: Assumption


@lru_cache
def load_assumptions() -> Assumptions:
    """The shipped table."""
    return Assumptions.model_validate(read_json(Path(__file__).parent / "assumptions.json", "the table of assumptions"))


@dataclass(frozen=True)
class Costs:
    """What one step of a program costs on one device."""

    compute_cycles: int
    unknown_cycles: int
    """Operations whose cycles the compiler does not know; they are in no sum."""
    compute_seconds: float
    attention_seconds: Band
    attention_kernels: dict[str, int]
    """Calls in one step, by kernel."""
    collectives: list[Collective]
    exposed_seconds: Band
    product_flops: float
    """Of all matrix products outside kernels, what is recomputed included."""
    attention_flops: float
    step_seconds: Band
    dearest: list[tuple[str, float]]
    """Source lines and their seconds of compute, the dearest first."""


def costs(program: Program, model: Model, layer: kernels.AttentionShape, links: Links) -> Costs:
    """Cost of a step.

    Args:
        layer: what an attention kernel of one device sees; its window is taken from the model, layer by layer.
    """
    executed = list(program.executed())
    scheduled = [(one, one.instruction.cycles) for one in executed if one.fused_into is None]
    known = [(one, cycles) for one, cycles in scheduled if cycles is not None and cycles != UNKNOWN_CYCLES]
    cycles, clock_hz = sum(one.times * count for one, count in known), links.hardware.clock_hz
    calls, constants = _kernel_calls(executed), load_assumptions()
    kernel, link = constants.kernel_efficiency, constants.link_efficiency
    corners = [
        _corner(program, links, calls, _seconds_of_a_call(model, layer, links.hardware, share), rate)
        for share, rate in ((kernel.expected, link.expected), (kernel.high, link.high), (kernel.low, link.low))
    ]
    attention, exposed, step = (
        Band(expected=expected, low=low, high=high) for expected, low, high in zip(*corners, strict=True)
    )
    lines: Counter[str] = Counter()
    for one, count in known:
        lines[one.source or "not stated"] += one.times * count
    return Costs(
        cycles, sum(count == UNKNOWN_CYCLES for _, count in scheduled), cycles / clock_hz, attention, calls,
        collectives(program, links), exposed, _product_flops(executed, program), _attention_flops(calls, model, layer),
        step, [(line, total / clock_hz) for line, total in lines.most_common(10)],
    )  # fmt: skip


def _corner(
    program: Program, links: Links, calls: Mapping[str, int], kernel_seconds: Mapping[str, float],
    link_efficiency: float,
) -> tuple[float, float, float]:  # fmt: skip
    """Seconds of attention, of collectives with no compute beside them, and of the whole step."""

    def compute(one: Instruction) -> float:
        if KERNEL_TARGET in one.text:
            return kernel_seconds.get(_kernel_name(one), 0.0)
        known = one.cycles is not None and one.cycles != UNKNOWN_CYCLES
        return (one.cycles or 0) / links.hardware.clock_hz if known else 0.0

    def link(one: Instruction, inside: str) -> float:
        moved = transfer(one, inside, links)
        return 0.0 if moved is None else moved.seconds / link_efficiency

    step, exposed = run_through(program, compute, link)
    return sum(count * kernel_seconds.get(name, 0.0) for name, count in calls.items()), exposed, step


def _kernel_calls(executed: Sequence[Executed]) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for one in executed:
        if KERNEL_TARGET in one.instruction.text:
            calls[_kernel_name(one.instruction)] += one.times
    return dict(calls)


def _kernel_name(instruction: Instruction) -> str:
    return next((name for name in _PRODUCTS_OF_KERNEL if instruction.name.startswith(name)), instruction.name)


def _layers(model: Model, layer: kernels.AttentionShape) -> list[kernels.AttentionShape]:
    shape = (layer.sequences, layer.length)
    return [
        kernels.AttentionShape(*shape, model.layer_window(number), layer.heads, layer.head_dim, layer.block)
        for number in range(model.n_layers)
    ]


def _seconds_of_a_call(
    model: Model, layer: kernels.AttentionShape, hardware: Hardware, efficiency: float
) -> dict[str, float]:
    """By kernel, the mean over the model's layers."""
    return {
        name: fmean(kernels.kernel_seconds(one, products, hardware, efficiency) for one in _layers(model, layer))
        for name, products in _PRODUCTS_OF_KERNEL.items()
    }


def _attention_flops(calls: Mapping[str, int], model: Model, layer: kernels.AttentionShape) -> float:
    return sum(
        calls.get(name, 0) / model.n_layers * kernels.kernel_flops(one, products)
        for name, products in _PRODUCTS_OF_KERNEL.items() for one in _layers(model, layer)
    )  # fmt: skip


def _product_flops(executed: Sequence[Executed], program: Program) -> float:
    """FLOPs of all plain products: [M, K] by [K, N] costs 2 M K N, and the three sizes give K."""
    shapes = {one.name: one for body in program.computations.values() for one in body}
    total = 0.0
    for one in executed:
        if one.instruction.opcode in ("convolution", "dot"):
            left, right = (_elements(shapes[name]) for name in one.instruction.operands[:2])
            out = _elements(one.instruction)
            total += one.times * 2 * float(np.sqrt(float(left) * float(right) * float(out)))
    return total


def _elements(instruction: Instruction) -> int:
    shape = instruction.text[: instruction.text.index("]") + 1]
    element = shape.strip("( ").split("[")[0]
    return instruction.shape_bytes // max(shape_bytes(f"{element}[]"), 1)
