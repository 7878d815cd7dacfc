"""The section on what a run was predicted to cost on a slice."""

from ectype.plan.predict import Band
from ectype.plan.record import PlanRecord, StepRecord
from ectype.report.figures import plan_parts
from ectype.report.markup import Cell, Column, Html, Part, definitions, figure, number, percent, section, table

_MEMORY = {"parameters": "parameters", "moments": "moments", "kept_activations": "kept activations", "code": "code"}


def plan_part(plan: PlanRecord) -> Part:
    """Memory, one step and the whole recipe, as the TPU compiler and the models of kernels and links see them."""
    memory, step = plan.memory, plan.step
    lead = (
        f"{plan.recipe} compiled for {plan.topology} ({plan.devices:,} devices, placement {plan.placement}) on a "
        "machine without one; predicted, not measured."
    )
    used = memory.peak or memory.refused_at
    pairs: list[tuple[Cell, Cell]] = [
        ("Peak memory of a device", Html(f"{_gigabytes(used)} of {_gigabytes(memory.limit)}")),
        ("Fits", "yes" if memory.fits else "no"),
    ]
    if step is None:
        return Part("plan", "Plan", section("plan", "Plan", lead, definitions(pairs)))
    pairs += [
        ("A step", _band(step.seconds, "s")),
        ("Throughput", _band(step.tokens_per_second, "tokens/s")),
        ("Model FLOP utilisation", Html(percent(step.mfu.expected, 1))),
        ("Executed over model FLOPs", Html(number(step.executed_over_model_flops))),
        ("Operations whose cycles the compiler does not know", Html(number(step.unknown_cycles))),
    ]
    if plan.days is not None and plan.chip_hours is not None:
        pairs += [("Whole recipe", _band(plan.days, "days")), ("Chip-hours", _band(plan.chip_hours, ""))]
    rows: list[list[Cell]] = [[line, Html(number(seconds))] for line, seconds in step.dearest_lines]
    body = (
        definitions(pairs),
        figure(
            "plan-parts", "One step and one device", "Seconds of a step and memory of a device, by what they go to."
        ),
        table("The dearest source lines, compute", [Column("line"), Column("seconds a step", "number")], rows),
    )
    return Part("plan", "Plan", section("plan", "Plan", lead, *body), {"plan-parts": _figure(plan, step)})


def _figure(plan: PlanRecord, step: StepRecord) -> dict[str, object]:
    seconds = {
        "compute": step.compute_seconds, "attention kernels": step.attention_seconds.expected,
        "exposed collectives": step.exposed_collective_seconds.expected,
    }  # fmt: skip
    parts = {name: getattr(plan.memory, field) or 0 for field, name in _MEMORY.items()}
    rest = max(0, (plan.memory.peak or 0) - sum(parts.values()))
    return plan_parts(seconds, {name: part / 1e9 for name, part in (parts | {"temporaries": rest}).items()})


def _band(band: Band, unit: str) -> Html:
    return Html(f"{number(band.expected)} {unit} ({number(band.low)} to {number(band.high)})")


def _gigabytes(size: int | None) -> str:
    return f"{number(None if size is None else size / 1e9)} GB"
