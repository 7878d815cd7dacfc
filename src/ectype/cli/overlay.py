"""`ectype overlay`: a run's training loss over that of a CSV file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ectype.cli.output import JSON_OPTION, console, emit, number, verb

if TYPE_CHECKING:
    from ectype.compare.log_overlay import LaidOver

LOG_ARGUMENT = typer.Argument(metavar="LOG", help="The reference's log, a CSV file; an export of W&B will do.")
STEP_OPTION = typer.Option("--step", help="Its column of steps. Default: the reference's, else step.")
LOSS_OPTION = typer.Option(
    "--loss",
    metavar="COLUMN",
    help="Its column of the loss, W&B's `RUN - ` left out. Default: the reference's, else train/CE loss.",
)
OUT_OPTION = typer.Option("--out", help="Also write both curves, their difference, its mean and its band to this CSV.")


@verb
def overlay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run.")],
    log: Annotated[Path, LOG_ARGUMENT],
    step: Annotated[str | None, STEP_OPTION] = None,
    loss: Annotated[str | None, LOSS_OPTION] = None,
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

    if out is not None:
        _check_out(out, run, log)
    laid = overlay_on_csv(run, log, step, loss)
    if out is not None:
        write_curves(out, laid)
    facts = laid.facts

    def show() -> None:
        for line in _sentences(laid):
            console().print(line)
        if facts.warning:
            console().print(f"[yellow]Warning: {facts.warning}[/]")

    emit(asdict(facts), json_output, show)


def _check_out(out: Path, run: Path, log: Path) -> None:
    """The curves must not take the place of what they are drawn from, nor of any other record of the run."""
    from ectype.errors import EctypeError

    if out.resolve() == log.resolve() or run.resolve() in out.resolve().parents:
        what = "the log itself" if out.resolve() == log.resolve() else "a file of the run folder"
        raise EctypeError(f"--out {out}, {what}", "a file of its own, elsewhere", "name another file")


def _sentences(laid: "LaidOver") -> list[str]:
    """What was compared with what, and what came of it."""
    facts = laid.facts
    left_out = f"; {facts.aggregated_rows:,} rows of the log are means, left out" if facts.aggregated_rows else ""
    said = [
        f"{facts.steps_compared:,} steps are compared, run less log{left_out}.",
        f"Single steps: the largest difference is {number(facts.largest, '+.3g')} nats, at step {facts.largest_step:,}."
        f" More than the float32 floor of {facts.raw_threshold:.3g} nats: {_when(facts.first_raw_departure_step)}.",
    ]
    width, least = facts.smoothing_steps, max(facts.raw_threshold, facts.smoothed_threshold or 0.0)
    if not len(laid.band.steps):
        said.append(f"There is no mean of {width} steps, since fewer are compared.")
    else:
        worst = int(abs(laid.band.smoothed).argmax())
        said.append(
            f"Means of {width} steps: the largest difference is {number(facts.largest_smoothed, '+.3g')} nats, of the "
            f"steps up to {laid.band.steps[worst]:,}. The noise of single steps allows "
            f"{laid.band.half_width[worst]:.3g} nats there, and the floor or the twins {least:.3g} nats. "
            f"More than both: {_when(facts.first_band_departure_step)}."
        )
    quarter = max(1, facts.steps_compared // 4)
    said.append(
        f"The mean of the last quarter, {quarter:,} steps, differs by {number(facts.mean_last_quarter, '+.3g')} nats."
    )
    return said


def _when(step: int | None) -> str:
    return "never" if step is None else f"first at step {step:,}"
