"""`ectype plan`: what a recipe would cost on a TPU slice, before one is rented."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ectype.cli.output import JSON_OPTION, ProgressBar, console, emit, plain_table, verb
from ectype.errors import EXIT_DONE, EXIT_NEGATIVE

if TYPE_CHECKING:
    from ectype.plan.predict import Band
    from ectype.plan.record import PlanRecord, StepRecord

    Planner = Callable[[Any, Any, Any], PlanRecord]

TOPOLOGY_OPTION = typer.Option("--topology", metavar="CHIP:SHAPE", help="Slice to compile for, as tpu7x:4x8x8.")
CACHE_OPTION = typer.Option(
    "--cache", envvar="ECTYPE_PLAN_CACHE", help="Folder of compiled programs; a job is compiled once."
)


SEARCH_OPTION = typer.Option("--search", help="Try other meshes, micro-batches, remat sets, blocks and flags.")
WRITE_OPTION = typer.Option("--write", metavar="FILE", help="With --search: write the best placement here.")
SCALE_OPTION = typer.Option("--scale", metavar="N,N,..", help="These counts of devices, each with as many windows.")
COMPARE_OPTION = typer.Option("--compare", metavar="A B", help="Two recipes, or two placements, on the same slice.")
RUN_OPTION = typer.Option("--run", metavar="RUN", help="Run folder: keep the plan in it, for its report.")


@verb
def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Shipped recipe name or YAML file.")],
    topology: Annotated[str, TOPOLOGY_OPTION],
    placement: Annotated[str, typer.Option("--placement", help="Shipped placement name or YAML file.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Recipe field=value; may repeat.")] = None,
    placement_overrides: Annotated[
        list[str] | None, typer.Option("--placement-set", help="Placement field=value; may repeat.")
    ] = None,
    search: Annotated[bool, SEARCH_OPTION] = False,
    write: Annotated[Path | None, WRITE_OPTION] = None,
    scale: Annotated[str | None, SCALE_OPTION] = None,
    compare: Annotated[tuple[str, str] | None, COMPARE_OPTION] = None,
    run_dir: Annotated[Path | None, RUN_OPTION] = None,
    cache: Annotated[Path, CACHE_OPTION] = Path("~/.cache/ectype/plan"),
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int:
    """Predict what a recipe costs on a TPU slice, without a TPU.

    Compiles the training step with the TPU compiler; exit 1 when it does not fit.

    Example: ectype plan olmo3-7b-stage2 --topology v5p:4x4x8 --placement v5p-4x4x8
    """
    from ectype.errors import EctypeError
    from ectype.plan.hardware import parse_slice
    from ectype.plan.record import write_plan
    from ectype.recipe.load import load_placement, load_recipe
    from ectype.run.paths import RunFolder

    several = sum((search, scale is not None, compare is not None))
    if several > 1 or (write is not None and not search) or (run_dir is not None and several):
        raise EctypeError(
            "more than one of --search, --scale and --compare, --run with one of them, or --write without --search",
            "one question at a time", "leave the others out",
        )  # fmt: skip
    if run_dir is not None:
        RunFolder(run_dir).require()
    where = parse_slice(topology)
    spec, place = load_recipe(recipe, overrides or ()), load_placement(placement, placement_overrides or ())
    with ProgressBar() as progress:
        run = _planner(cache.expanduser(), progress)
        if search:
            return _search(run, progress, spec, place, where, write, json_output)
        if scale is not None:
            return _several(run, _scaled(spec, place, where, scale), json_output)
        if compare is not None:
            pairs = _pair(spec, place, compare, overrides or (), placement_overrides or ())
            return _several(run, [(name, one, layout, where) for name, one, layout in pairs], json_output)
        record = run(spec, place, where)
    if run_dir is not None:
        write_plan(run_dir, record)
    emit(record.model_dump(mode="json"), json_output, lambda: _show(record))
    return EXIT_DONE if record.memory.fits else EXIT_NEGATIVE


def _planner(cache: Path, progress: ProgressBar) -> "Planner":
    """Compiles a recipe's step on a slice, or takes it from the cache, and judges it."""
    from ectype.plan.build import plan_record
    from ectype.plan.compiled import compile_step

    def run(recipe: Any, placement: Any, where: Any) -> "PlanRecord":
        return plan_record(recipe, placement, where, compile_step(recipe, placement, where, cache, progress))

    return run


def _search(
    run: "Planner",
    progress: ProgressBar,
    recipe: Any,
    placement: Any,
    where: Any,
    write: Path | None,
    json_output: bool,
) -> int:
    from ectype.artifacts import write_bytes_atomic
    from ectype.plan.search import search
    from ectype.recipe.load import to_yaml

    tried = []
    for one in search(recipe, placement, where, lambda candidate: run(recipe, candidate, where)):
        tried.append(one)
        progress.detail = f"{len(tried)} placements tried"
    ranked = sorted(tried, key=lambda one: one.seconds)
    best = ranked[0]
    if write is not None and best.plan.memory.fits:
        named = best.placement.model_copy(update={"name": write.stem})
        write_bytes_atomic(write, to_yaml(named).encode())
    rows = [(one.changed or f"{placement.name} as it is", one.plan) for one in ranked]
    result = {"tried": [{"changed": name, "plan": plan.model_dump(mode="json")} for name, plan in rows]}
    emit(result | {"best": best.placement.model_dump(mode="json")}, json_output, lambda: _show_several(rows))
    return EXIT_DONE if best.plan.memory.fits else EXIT_NEGATIVE


def _several(run: "Planner", jobs: list[tuple[str, Any, Any, Any]], json_output: bool) -> int:
    rows = [(name, run(recipe, placement, where)) for name, recipe, placement, where in jobs]
    result = {"plans": [{"name": name, "plan": plan.model_dump(mode="json")} for name, plan in rows]}
    emit(result, json_output, lambda: _show_several(rows))
    return EXIT_DONE if all(plan.memory.fits for _, plan in rows) else EXIT_NEGATIVE


def _scaled(recipe: Any, placement: Any, where: Any, scale: str) -> list[tuple[str, Any, Any, Any]]:
    from ectype.errors import EctypeError
    from ectype.plan.hardware import slice_of
    from ectype.plan.scale import with_windows_of

    try:
        counts = [int(count) for count in scale.split(",")]
    except ValueError:
        raise EctypeError(f"--scale {scale}", "counts of devices", "for example --scale 128,256,512") from None
    slices = [slice_of(where.hardware, count) for count in counts]
    return [(one.name, with_windows_of(recipe, where.devices, one.devices), placement, one) for one in slices]


def _pair(
    recipe: Any, placement: Any, names: tuple[str, str], overrides: Sequence[str], placement_overrides: Sequence[str]
) -> list[tuple[str, Any, Any]]:
    from ectype.errors import EctypeError
    from ectype.recipe.load import load_placement, load_recipe, shipped

    def is_placement(name: str) -> bool:
        return name in shipped("placement") or (Path(name).is_file() and "mesh:" in Path(name).read_text())

    kinds = [is_placement(name) for name in names]
    if kinds[0] != kinds[1]:
        raise EctypeError(f"--compare {names[0]} {names[1]}", "two recipes or two placements", "name two of a kind")
    if kinds[0]:
        return [(name, recipe, load_placement(name, placement_overrides)) for name in names]
    return [(name, load_recipe(name, overrides), placement) for name in names]


def _show_several(rows: list[tuple[str, "PlanRecord"]]) -> None:
    table = plain_table(
        "", "devices", "memory a device", "time", "tokens/s", "TFLOP/s a device", "over the first", numbers_from=1
    )
    first = rows[0][1]
    for name, record in rows:
        memory, step = record.memory, record.step
        used = memory.peak or memory.refused_at
        size = "?" if used is None else amount_text(used)
        if step is None:
            table.add_row(name, str(record.devices), size, "does not fit", "", "", "")
            continue
        faster = (
            ""
            if first.step is None
            else f"{step.tokens_per_second.expected / first.step.tokens_per_second.expected:.3f}"
        )
        table.add_row(
            name, str(record.devices), size, seconds_text(step.seconds.expected),
            f"{step.tokens_per_second.expected:,.0f}", f"{step.model_tflops_per_device.expected:.1f}", faster,
        )  # fmt: skip
    console().print(table)


def _show(record: "PlanRecord") -> None:
    screen = console()
    mesh = ", ".join(f"{name} {size}" for name, size in record.mesh.items() if size > 1) or "one device"
    screen.print(f"{record.recipe} on {record.topology}: {record.devices} devices, {mesh}")
    memory = record.memory
    used = memory.peak or memory.refused_at
    size = "an amount that it does not state" if used is None else amount_text(used)
    state = "fits" if memory.fits else "does not fit"
    screen.print(f"memory: {state}: {size} of {memory.limit / 1e9:.1f} GB a device")
    table = plain_table("of it, a device", "", numbers_from=1)
    for name in ("parameters", "moments", "kept_activations", "code"):
        if (part := getattr(memory, name)) is not None:
            table.add_row(name.replace("_", " "), amount_text(part))
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
        ("time", step.seconds, "s"), ("  attention kernels", step.attention_seconds, "s"),
        ("  exposed collectives", step.exposed_collective_seconds, "s"),
        ("tokens/s", step.tokens_per_second, ",.0f"), ("model TFLOP/s a device", step.model_tflops_per_device, ".1f"),
        ("utilisation", step.mfu, ".1%"),
    ):  # fmt: skip
        table.add_row(name, *_cells(band, form))
    if record.chip_hours is not None and record.days is not None:
        table.add_row("chip-hours, whole recipe", *_cells(record.chip_hours, ",.0f"))
        table.add_row("days, whole recipe", *_cells(record.days, ".2f"))
    screen.print(table)
    screen.print(
        f"compute {seconds_text(step.compute_seconds)} by the compiler's cycles "
        f"({step.unknown_cycles} operations unknown), executed over model FLOPs {step.executed_over_model_flops:.3f}"
    )
    links = plain_table("collective", "over", "beside compute", "calls", "a device", "ms", numbers_from=3)
    for one in step.collectives:
        amount, time = amount_text(one.received_bytes), f"{one.seconds * 1e3:.2f}"
        links.add_row(one.kind, "+".join(one.axes), "yes" if one.asynchronous else "no", str(one.calls), amount, time)
    screen.print(links)
    lines = plain_table("dearest source lines", "ms", numbers_from=1)
    for line, seconds in step.dearest_lines:
        lines.add_row(line, f"{seconds * 1e3:.1f}")
    screen.print(lines)


def _cells(band: "Band", form: str) -> tuple[str, str, str]:
    """A band's three numbers; the form `s` stands for seconds."""

    def cell(value: float) -> str:
        return seconds_text(value) if form == "s" else format(value, form)

    return cell(band.expected), cell(band.low), cell(band.high)


def amount_text(size_bytes: float) -> str:
    """Bytes in the unit that leaves figures before the point: a toy model's are not 0.00 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def seconds_text(seconds: float) -> str:
    """Seconds, or milli- or microseconds where there would be zeros alone."""
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3f} µs"
