"""`ectype plan`: what a recipe would cost on a TPU slice, before one is rented."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ectype.cli.output import JSON_OPTION, ProgressBar, console, emit, plain_table, verb
from ectype.errors import EXIT_DONE, EXIT_NEGATIVE

if TYPE_CHECKING:
    from ectype.plan.record import BandRecord, PlanRecord, StepRecord

TOPOLOGY_OPTION = typer.Option("--topology", metavar="CHIP:SHAPE", help="Slice to compile for, as tpu7x:4x8x8.")
CACHE_OPTION = typer.Option(
    "--cache", envvar="ECTYPE_PLAN_CACHE", help="Folder of compiled programs; a job is compiled once."
)


@verb
def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Shipped recipe name or YAML file.")],
    topology: Annotated[str, TOPOLOGY_OPTION],
    placement: Annotated[str, typer.Option("--placement", help="Shipped placement name or YAML file.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Recipe field=value; may repeat.")] = None,
    placement_overrides: Annotated[
        list[str] | None, typer.Option("--placement-set", help="Placement field=value; may repeat.")
    ] = None,
    cache: Annotated[Path, CACHE_OPTION] = Path("~/.cache/ectype/plan"),
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int:
    """Predict what a recipe costs on a TPU slice, without a TPU.

    Compiles the training step with the TPU compiler; exit 1 when it does not fit.

    Example: ectype plan olmo3-7b-stage2 --topology v5p:4x4x8 --placement v5p-4x4x8
    """
    from ectype.plan.compiled import compile_step
    from ectype.plan.hardware import parse_slice
    from ectype.plan.record import plan_record
    from ectype.recipe.load import load_placement, load_recipe

    where = parse_slice(topology)
    spec, place = load_recipe(recipe, overrides or ()), load_placement(placement, placement_overrides or ())
    with ProgressBar() as progress:
        compiled = compile_step(spec, place, where, cache.expanduser(), progress)
        record = plan_record(spec, place, where, compiled)
    emit(record.model_dump(mode="json"), json_output, lambda: _show(record))
    return EXIT_DONE if record.memory.fits else EXIT_NEGATIVE


def _show(record: "PlanRecord") -> None:
    screen = console()
    mesh = ", ".join(f"{name} {size}" for name, size in record.mesh.items() if size > 1) or "one device"
    screen.print(f"{record.recipe} on {record.topology}: {record.devices} devices, {mesh}")
    memory = record.memory
    used = memory.peak or memory.refused_at
    size = "an amount that it does not state" if used is None else f"{used / 1e9:.2f} GB"
    state = "fits" if memory.fits else "does not fit"
    screen.print(f"memory: {state}: {size} of {memory.limit / 1e9:.1f} GB a device")
    table = plain_table("of it, a device", "GB", numbers_from=1)
    for name in ("parameters", "moments", "kept_activations", "code"):
        if (part := getattr(memory, name)) is not None:
            table.add_row(name.replace("_", " "), f"{part / 1e9:.2f}")
    screen.print(table)
    if record.step is None:
        over = "" if used is None else f"{(used - memory.limit) / 1e9:.2f} GB too much: "
        screen.print(f"{over}keep fewer activations (remat), set micro_batch_windows, or take more devices")
        return
    _show_step(record, record.step)


def _show_step(record: "PlanRecord", step: "StepRecord") -> None:
    screen = console()
    table = plain_table("one step", "expected", "low", "high", numbers_from=1)
    for name, band, form in (
        ("seconds", step.seconds, ".3f"), ("  attention kernels", step.attention_seconds, ".3f"),
        ("  exposed collectives", step.exposed_collective_seconds, ".3f"),
        ("tokens/s", step.tokens_per_second, ",.0f"), ("model TFLOP/s a device", step.model_tflops_per_device, ".1f"),
        ("utilisation", step.mfu, ".1%"),
    ):  # fmt: skip
        table.add_row(name, *_cells(band, form))
    if record.chip_hours is not None and record.days is not None:
        table.add_row("chip-hours, whole recipe", *_cells(record.chip_hours, ",.0f"))
        table.add_row("days, whole recipe", *_cells(record.days, ".2f"))
    screen.print(table)
    screen.print(
        f"compute {step.compute_seconds:.3f} s by the compiler's cycles ({step.unknown_cycles} operations unknown), "
        f"executed over model FLOPs {step.executed_over_model_flops:.3f}"
    )
    links = plain_table("collective", "over", "beside compute", "calls", "GB a device", "ms", numbers_from=3)
    for one in step.collectives:
        amount, time = f"{one.received_bytes / 1e9:.3f}", f"{one.seconds * 1e3:.2f}"
        links.add_row(one.kind, "+".join(one.axes), "yes" if one.asynchronous else "no", str(one.calls), amount, time)
    screen.print(links)
    lines = plain_table("dearest source lines", "ms", numbers_from=1)
    for line, seconds in step.dearest_lines:
        lines.add_row(line, f"{seconds * 1e3:.1f}")
    screen.print(lines)


def _cells(band: "BandRecord", form: str) -> tuple[str, str, str]:
    return format(band.expected, form), format(band.low, form), format(band.high, form)
