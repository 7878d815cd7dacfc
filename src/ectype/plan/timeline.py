"""One step run through in the order of the program's schedule: what the matrix units wait for.

The links carry one collective after another. A collective that the program starts and waits for later runs beside what
stands between; one that it waits for at once does not.
"""

from collections.abc import Callable
from functools import cache

from ectype.plan.program import Instruction, Program

Compute = Callable[[Instruction], float]
Link = Callable[[Instruction, str], float]
"""Of an instruction and the name of the computation that holds it."""


def run_through(program: Program, compute: Compute, link: Link) -> tuple[float, float]:
    """Seconds of one step, and those in which only links work.

    Args:
        compute: seconds of an operation on the matrix and vector units; 0 of what costs nothing.
        link: seconds that the links need for a collective; 0 of other operations.
    """

    @cache
    def moving(name: str) -> float:
        """Seconds of all collectives within a computation."""
        return sum(link(one, name) + (moving(one.called) if one.called else 0.0) for one in program.computations[name])

    @cache
    def run(name: str) -> tuple[float, float]:
        now = exposed = free = 0.0
        """When the units, and when the links, come to the next operation."""
        ends: dict[str, float] = {}
        for one in program.computations[name]:
            if one.opcode in ("while", "call", "conditional") and one.called:
                times = program.trip_counts.get(one.name, 1) if one.opcode == "while" else 1
                seconds, waited = run(one.called)
                now, exposed = now + times * seconds, exposed + times * waited
                continue
            linked = link(one, name) + (moving(one.called) if one.called else 0.0)
            if linked:
                free = max(now, free) + linked
            if one.opcode.endswith("-start"):
                ends[one.name] = free if linked else now
                continue
            own, end = compute(one), free if linked else max((ends.get(of, 0.0) for of in _waits_for(one)), default=0.0)
            wait = max(0.0, end - now - own)
            now, exposed = now + own + wait, exposed + wait
        return now, exposed

    return run(program.entry)


def _waits_for(instruction: Instruction) -> list[str]:
    return instruction.operands if instruction.opcode.endswith("-done") else []
