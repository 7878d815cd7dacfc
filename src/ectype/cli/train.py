"""`ectype train`: from a recipe to a trained run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ectype.cli.output import JSON_OPTION, REMAP_OPTION, ProgressBar, console, emit, plain_table, verb

WEIGHTS_OPTION = typer.Option(envvar="LOAD_PARAMETERS_PATH", help="Step-0 weights: checkpoint or Hugging Face folder.")
PADDED_ROWS_OPTION = typer.Option("--padded-rows", help="Side file with rows that a Hugging Face export dropped.")
FROM_STEP_OPTION = typer.Option(
    "--from-step", min=0, help="Roll back to this checkpoint first; later ones are archived."
)
COORDINATOR_OPTION = typer.Option(
    "--coordinator", help="HOST:PORT of process 0 of a job of several processes; auto asks the cluster."
)
PROFILE_OPTION = typer.Option(
    "--profile", metavar="STEPS", help="Write an XProf trace of these steps, as 10-12, to RUN/profile."
)
SOURCE_OPTION = typer.Option(
    "--from", metavar="RUN_OR_CHECKPOINT", help="What a later stage goes on from; the recipe's hand_over says how."
)
_PARTS = "moments, adam_count, schedule, data_position, skip_history"
KEEP_OPTION = typer.Option("--keep", help=f"With --from: keep this of the source ({_PARTS}); may repeat.")
RESET_OPTION = typer.Option("--reset", help="With --from: begin this anew; may repeat.")
ALLOW_OPTION = typer.Option("--allow-change", help="Recipe field that may differ from the run's; may repeat.")


@verb
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Shipped recipe name or YAML file.")],
    run: Annotated[Path, typer.Option("--run", help="Run folder; an existing run is resumed.")],
    placement: Annotated[str, typer.Option("--placement", help="Shipped placement name or YAML file.")] = "cpu",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Recipe field=value; may repeat.")] = None,
    placement_overrides: Annotated[
        list[str] | None, typer.Option("--placement-set", help="Placement field=value; may repeat.")
    ] = None,
    index: Annotated[str | None, typer.Option(envvar="OLMO_INDEX_PATH", help="Index or manifest of tokens.")] = None,
    remap: Annotated[list[str] | None, REMAP_OPTION] = None,
    weights: Annotated[str | None, WEIGHTS_OPTION] = None,
    padded_rows: Annotated[str | None, PADDED_ROWS_OPTION] = None,
    source: Annotated[str | None, SOURCE_OPTION] = None,
    keep: Annotated[list[str] | None, KEEP_OPTION] = None,
    reset: Annotated[list[str] | None, RESET_OPTION] = None,
    until: Annotated[int | None, typer.Option(min=1, help="Stop after this many updates in all.")] = None,
    from_step: Annotated[int | None, FROM_STEP_OPTION] = None,
    coordinator: Annotated[str | None, COORDINATOR_OPTION] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes of the job.")] = None,
    process: Annotated[int | None, typer.Option(min=0, help="This process's number.")] = None,
    profile: Annotated[str | None, PROFILE_OPTION] = None,
    allow_change: Annotated[list[str] | None, ALLOW_OPTION] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Also log to TensorBoard here (extra `track`).")] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Train a recipe into a run folder, or resume it. Example: ectype train toy-calm --run runs/calm"""
    from ectype.recipe.load import load_placement

    given: dict[str, str | None] = {} if index is None else {"index": index}
    if weights is not None:
        given |= {"weights": weights, "padded_rows": padded_rows}
    choices = {"keep": keep or [], "reset": reset or []}
    spec = resolved_recipe(recipe, run, overrides or [], choices, remap or [], source, given)
    _check_end(until, spec.duration_steps)
    where = load_placement(placement, placement_overrides or ())
    # The numerical libraries take seconds to load: only for what was read without an error.
    from ectype.train.distributed import join
    from ectype.train.loop import train_run
    from ectype.train.profile import parse_profiled_steps
    from ectype.train.sharding import prepare_devices

    prepare_devices(where)
    join(coordinator, processes, process)
    with open_tensorboard(tensorboard) as write, ProgressBar() as bar:

        def watch(row: dict[str, Any]) -> None:
            bar.detail = _detail(row)
            write(row)

        result = train_run(
            spec, where, run, until=until, from_step=from_step, allowed=allow_change or (), progress=bar, watch=watch,
            profile=None if profile is None else parse_profiled_steps(profile),
            warn=lambda text: print(f"warning: {text}", file=sys.stderr),
            announce=lambda record: _show_hand_over(record, spec),
        )  # fmt: skip
    _report(run, spec.duration_steps, result, json_output)


def _check_end(until: int | None, duration_steps: int) -> None:
    from ectype.errors import EctypeError

    if until is not None and until > duration_steps:
        raise EctypeError(
            f"--until {until}", f"at most {duration_steps}, the recipe's duration_steps",
            "lower it, or lengthen the run with --set duration_steps=N",
        )  # fmt: skip


def _report(run: Path, duration_steps: int, result: Any, json_output: bool) -> None:
    """How far the run is, and where its seconds went."""
    from ectype.run.goodput import read_goodput

    whole, sessions = read_goodput(run)
    record = {
        "run": str(run), "step": result.step, "last": result.last,
        "goodput": {"run": whole.record(), "session": sessions[-1].goodput.record()},
    }  # fmt: skip

    def show() -> None:
        print(f"{run}: {result.step} of {duration_steps} updates done")
        _show_goodput(whole, sessions[-1].goodput)

    emit(record, json_output, show)


def resolved_recipe(
    name: str, run: Path, overrides: list[str], choices: dict[str, list[str]], remap: list[str], source: str | None,
    given: dict[str, str | None],
) -> Any:  # fmt: skip
    """The recipe with what the command line says of its inputs, and of what it takes over.

    Inputs that it does not name are those of the run that is resumed, else the recipe's.
    """
    from ectype.errors import EctypeError
    from ectype.recipe.load import load_recipe, with_inputs
    from ectype.recipe.spec import HandOver
    from ectype.run.manifest import with_stored_inputs

    parts = [(choice, part.replace("-", "_")) for choice, chosen in choices.items() for part in chosen]
    known = set(HandOver.model_fields) - {"source_step"}
    for _, part in parts:
        if part not in known or [chosen for _, chosen in parts].count(part) > 1:
            raise EctypeError(
                f"--keep or --reset of {part!r}", f"each of {', '.join(sorted(known))} once at most", "name it once"
            )
    spec = load_recipe(name, [*overrides, *(f"hand_over.{part}={choice}" for choice, part in parts)])
    if source is not None:
        # Weights of a recipe's own belong to a start from step 0; those that --weights names are refused later.
        given = {"weights": None, "padded_rows": None, **given, "source": source}
        if spec.hand_over is None:
            spec = spec.model_copy(update={"hand_over": HandOver()})
    spec = with_stored_inputs(spec, run, {*given, *_inputs_named(name, overrides, spec)})
    return with_inputs(spec, remap=remap, **given)


def _inputs_named(name: str, overrides: list[str], spec: Any) -> set[str]:
    """Fields of `inputs` that an override names, or a recipe file of the user's own."""
    from ectype.recipe.load import shipped
    from ectype.recipe.spec import Inputs

    keys = [override.partition("=")[0] for override in overrides]
    if "inputs" in keys:
        return set(Inputs.model_fields)
    named = {key.removeprefix("inputs.") for key in keys if key.startswith("inputs.")}
    return named if name in shipped("recipe") else named | spec.inputs.model_dump(exclude_defaults=True).keys()


def _show_hand_over(record: Any, spec: Any) -> None:
    """What is taken over, on standard error, since the first update is yet to come."""
    from rich.console import Console

    from ectype.train.hand_over import hand_over_table

    table = plain_table("hand-over", "", "", numbers_from=3)
    for row in hand_over_table(record, spec):
        table.add_row(*row)
    Console(stderr=True, highlight=False).print(table)


def _detail(row: dict[str, Any]) -> str:
    """What stands behind the bar after an update."""
    return (
        f"loss {row['loss']:.4f}  lr {row['learning_rate']:.2e}  norm {row['grad_norm']:.3f}"
        f"  {row['tokens_per_second']:,.0f} tokens/s{'  skipped' if row['skipped'] else ''}"
    )


def _show_goodput(whole: Any, session: Any) -> None:
    """A small table of where the seconds went."""
    table = plain_table("seconds", "this session", "whole run", numbers_from=1)
    ours, all_of_it = session.record(), whole.record()
    for name in ours:
        if name.endswith("_seconds"):
            label = name.removesuffix("_seconds").replace("_", " ")
            if name == "lost_seconds":
                label = f"lost ({all_of_it['lost_steps']} updates done again)"
            table.add_row(label, f"{ours[name]:,.1f}", f"{all_of_it[name]:,.1f}")
    shares = [f"{one.fraction:.1%}" if one.fraction is not None else "none" for one in (session, whole)]
    table.add_row("goodput", *shares)
    console().print(table)


@contextmanager
def open_tensorboard(folder: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that logs one row of metrics to TensorBoard; without a folder it does nothing."""
    if folder is None:
        yield lambda row: None
        return
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        from ectype.errors import EctypeError

        raise EctypeError(
            "--tensorboard, and tensorboardX is not installed", "the extra `track`", "pip install 'ectype[track]'"
        ) from None

    def write(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(f"train/{name}", value, row["step"])

    with SummaryWriter(str(folder)) as writer:
        yield write
