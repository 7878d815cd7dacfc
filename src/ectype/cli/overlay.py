"""`ectype overlay`: a run's training loss over that of a CSV file."""

from pathlib import Path
from typing import Annotated

import typer

from ectype.cli.output import JSON_OPTION, console, emit, number, verb

LOG_ARGUMENT = typer.Argument(metavar="LOG", help="The reference's log, a CSV file; an export of W&B will do.")
STEP_OPTION = typer.Option("--step", help="Its column of steps.")
LOSS_OPTION = typer.Option("--loss", help="Its column of the loss; W&B's `RUN - ` before it may be left out.")
OUT_OPTION = typer.Option("--out", help="Also write both curves, their difference, its mean and its band to this CSV.")


@verb
def overlay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    log: Annotated[Path, LOG_ARGUMENT],
    step: Annotated[str, STEP_OPTION] = "step",
    loss: Annotated[str, LOSS_OPTION] = "train/CE loss",
    out: Annotated[Path | None, OUT_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Lay a run's training loss over a reference's log.

    Raw and smoothed, with the band that noise allows, and the first step that leaves it. A loss below the log's that
    held-out text does not share is warned of: data was then probably read twice.
    Example: ectype overlay runs/calm wandb_export.csv --loss "train/CE loss"
    """
    from dataclasses import asdict

    from ectype.compare.log_overlay import overlay_on_csv, write_curves
    from ectype.recipe.reference import Log

    laid = overlay_on_csv(run, Log(path=log, step=step, loss=loss))
    if out is not None:
        write_curves(out, laid)
    facts = laid.facts

    def show() -> None:
        print_to = console()
        departures = {
            f"one step by more than {facts.raw_threshold:g}": facts.first_raw_departure_step,
            f"the mean of {facts.smoothing_steps} by more than noise": facts.first_band_departure_step,
        }
        print_to.print(f"{facts.steps_compared:,} steps compared, {facts.aggregated_rows:,} rows of means left out")
        print_to.print(f"largest difference {number(facts.largest, '+.3g')} nats, at step {facts.largest_step:,}")
        print_to.print(f"mean of the last quarter {number(facts.mean_last_quarter, '+.3g')} nats")
        if facts.band is not None:
            print_to.print(f"noise keeps the mean of {facts.smoothing_steps} steps within {facts.band:.3g} nats")
        for what, first in departures.items():
            print_to.print(f"{what}: {'never' if first is None else f'first at step {first:,}'}")
        if facts.warning:
            print_to.print(f"[yellow]Warning: {facts.warning}[/]")

    emit(asdict(facts), json_output, show)
