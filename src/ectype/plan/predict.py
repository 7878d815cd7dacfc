"""From a compiled program to seconds: compute by the compiler's cycles, attention and links by models of few constants.

The step takes the compute, the attention kernels and the part of the collectives that nothing covers, one after the
other. Every constant that is not the vendor's has a range in `assumptions.json`; the ranges make the band.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from ectype.artifacts import read_json
from ectype.plan import attention_cost as kernels
from ectype.plan.collective_cost import Collective, collectives
from ectype.plan.hardware import Hardware
from ectype.plan.program import UNKNOWN_CYCLES, Executed, Instruction, Program, shape_bytes
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
    exposed_of_asynchronous: Assumption


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


def costs(
    program: Program, model: Model, layer: kernels.AttentionShape, mesh: Mapping[str, int], hardware: Hardware
) -> Costs:
    """Cost of a step.

    Args:
        layer: what an attention kernel of one device sees; its window is taken from the model, layer by layer.
        mesh: sizes of the mesh axes in the order of the program's devices.
    """
    executed = list(program.executed())
    scheduled = [(one, one.instruction.cycles) for one in executed if one.fused_into is None]
    known = [(one, cycles) for one, cycles in scheduled if cycles is not None and cycles != UNKNOWN_CYCLES]
    cycles = sum(one.times * count for one, count in known)
    links = collectives(program, mesh, hardware)
    calls = _kernel_calls(executed)
    assumptions = load_assumptions()
    attention = _attention_band(calls, model, layer, hardware, assumptions.kernel_efficiency)
    exposed = _exposed_band(links, assumptions)
    compute = cycles / hardware.clock_hz
    lines: Counter[str] = Counter()
    for one, count in known:
        lines[one.source or "not stated"] += one.times * count
    return Costs(
        cycles, sum(count == UNKNOWN_CYCLES for _, count in scheduled), compute, attention, calls, links, exposed,
        _product_flops(executed, program), _attention_flops(calls, model, layer),
        Band(
            expected=compute + attention.expected + exposed.expected, low=compute + attention.low + exposed.low,
            high=compute + attention.high + exposed.high,
        ),
        [(line, total / hardware.clock_hz) for line, total in lines.most_common(10)],
    )  # fmt: skip


def _kernel_calls(executed: Sequence[Executed]) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for one in executed:
        if KERNEL_TARGET in one.instruction.text:
            names = [name for name in _PRODUCTS_OF_KERNEL if one.instruction.name.startswith(name)]
            calls[names[0] if names else one.instruction.name] += one.times
    return dict(calls)


def _layers(model: Model, layer: kernels.AttentionShape) -> list[kernels.AttentionShape]:
    shape = (layer.sequences, layer.length)
    return [
        kernels.AttentionShape(*shape, model.layer_window(number), layer.heads, layer.head_dim, layer.block)
        for number in range(model.n_layers)
    ]


def _attention_band(
    calls: Mapping[str, int], model: Model, layer: kernels.AttentionShape, hardware: Hardware, efficiency: Assumption
) -> Band:
    def seconds(share: float) -> float:
        total = 0.0
        for name, products in _PRODUCTS_OF_KERNEL.items():
            a_pass = sum(kernels.kernel_seconds(one, products, hardware, share) for one in _layers(model, layer))
            total += calls.get(name, 0) / model.n_layers * a_pass
        return total

    return Band(expected=seconds(efficiency.expected), low=seconds(efficiency.high), high=seconds(efficiency.low))


def _attention_flops(calls: Mapping[str, int], model: Model, layer: kernels.AttentionShape) -> float:
    return sum(
        calls.get(name, 0) / model.n_layers * kernels.kernel_flops(one, products)
        for name, products in _PRODUCTS_OF_KERNEL.items() for one in _layers(model, layer)
    )  # fmt: skip


def _exposed_band(links: Sequence[Collective], assumptions: Assumptions) -> Band:
    waited = sum(one.seconds for one in links if not one.asynchronous)
    beside = sum(one.seconds for one in links if one.asynchronous)
    rate, share = assumptions.link_efficiency, assumptions.exposed_of_asynchronous
    return Band(
        expected=(waited + share.expected * beside) / rate.expected,
        low=(waited + share.low * beside) / rate.high,
        high=(waited + share.high * beside) / rate.low,
    )


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
