"""`ectype launch local`: processes on this machine, supervised until the run is done."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ectype.cli import launch_options as options
from ectype.cli.output import JSON_OPTION, REMAP_OPTION, emit, verb

app = typer.Typer(
    help="Run a recipe as processes of this machine. Example: ectype launch local status runs/calm",
    no_args_is_help=True,
)  # fmt: skip
RUN_OPTION = typer.Option("--run", help="Run folder; an existing run is resumed.")
RUN_ARGUMENT = typer.Argument(metavar="RUN", help="Run folder.")
PROCESSES_OPTION = typer.Option("--processes", min=1, help="Processes of the job, over loopback.")
LINES_OPTION = typer.Option("--lines", min=1, help="Lines of each process's log.")


@app.command()
@verb
def submit(
    recipe: Annotated[str, options.RECIPE_ARGUMENT],
    run: Annotated[Path, RUN_OPTION],
    target_steps: Annotated[int | None, options.TARGET_OPTION] = None,
    processes: Annotated[int, PROCESSES_OPTION] = 1,
    placement: Annotated[str, options.PLACEMENT_OPTION] = "cpu",
    overrides: Annotated[list[str] | None, options.SET_OPTION] = None,
    placement_overrides: Annotated[list[str] | None, options.PLACEMENT_SET_OPTION] = None,
    index: Annotated[str | None, options.INDEX_OPTION] = None,
    remap: Annotated[list[str] | None, REMAP_OPTION] = None,
    weights: Annotated[str | None, options.WEIGHTS_OPTION] = None,
    padded_rows: Annotated[str | None, options.PADDED_ROWS_OPTION] = None,
    source: Annotated[str | None, options.SOURCE_OPTION] = None,
    state: Annotated[Path | None, options.STATE_OPTION] = None,
    dry_run: Annotated[bool, options.DRY_RUN_OPTION] = False,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Start one job and return. Example: ectype launch local submit toy-calm --run runs/calm --processes 2"""
    from ectype.launch.supervise import submit_once

    what = _supervised(
        recipe, run, target_steps, processes, placement, overrides, placement_overrides, index, remap, weights,
        padded_rows, source, state,
    )  # fmt: skip
    if dry_run:
        options.show_commands(what.backend, f"{what.name}-1")
        return
    run.parent.mkdir(parents=True, exist_ok=True)
    job = submit_once(what)
    record = {"job": job, "folder": str(what.state.jobs / job)}
    emit(record, json_output, lambda: print(f"{job} runs; its logs are in {record['folder']}"))


@app.command("resume-until-done")
@verb
def resume_until_done(
    recipe: Annotated[str, options.RECIPE_ARGUMENT],
    run: Annotated[Path, RUN_OPTION],
    target_steps: Annotated[int | None, options.TARGET_OPTION] = None,
    processes: Annotated[int, PROCESSES_OPTION] = 1,
    placement: Annotated[str, options.PLACEMENT_OPTION] = "cpu",
    overrides: Annotated[list[str] | None, options.SET_OPTION] = None,
    placement_overrides: Annotated[list[str] | None, options.PLACEMENT_SET_OPTION] = None,
    index: Annotated[str | None, options.INDEX_OPTION] = None,
    remap: Annotated[list[str] | None, REMAP_OPTION] = None,
    weights: Annotated[str | None, options.WEIGHTS_OPTION] = None,
    padded_rows: Annotated[str | None, options.PADDED_ROWS_OPTION] = None,
    source: Annotated[str | None, options.SOURCE_OPTION] = None,
    state: Annotated[Path | None, options.STATE_OPTION] = None,
    look_every_seconds: Annotated[float, options.LOOK_OPTION] = 2.0,
    failures: Annotated[int, options.FAILURES_OPTION] = 5,
    preemptions: Annotated[int, options.PREEMPTIONS_OPTION] = 50,
    first_pause_seconds: Annotated[float, options.FIRST_PAUSE_OPTION] = 15.0,
    stall_minutes: Annotated[float, options.STALL_OPTION] = 60.0,
    webhook_env: Annotated[str | None, options.WEBHOOK_VARIABLE_OPTION] = None,
    webhook_file: Annotated[Path | None, options.WEBHOOK_FILE_OPTION] = None,
    dry_run: Annotated[bool, options.DRY_RUN_OPTION] = False,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> int | None:
    """Restart it until done. Example: ectype launch local resume-until-done toy-calm --run runs/calm --processes 2"""
    from dataclasses import replace

    what = _supervised(
        recipe, run, target_steps, processes, placement, overrides, placement_overrides, index, remap, weights,
        padded_rows, source, state,
    )  # fmt: skip
    if dry_run:
        options.show_commands(what.backend, f"{what.name}-1")
        return None
    run.parent.mkdir(parents=True, exist_ok=True)
    policy = options.policy_of(1, failures, preemptions, first_pause_seconds, stall_minutes, None, None)
    webhook = options.webhook_of(webhook_env, webhook_file)
    what = replace(what, policy=policy, look_every_seconds=look_every_seconds, webhook=webhook)
    return options.drive(what, json_output)


@app.command()
@verb
def status(
    run: Annotated[Path, RUN_ARGUMENT],
    state: Annotated[Path | None, options.STATE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Say how job and run stand. Example: ectype launch local status runs/calm"""
    from functools import partial

    from ectype.launch.run_record import read_run

    folder = options.state_of(state, str(run))
    record = options.status_record(folder, _jobs_in(folder), partial(read_run, run))
    emit(record, json_output, lambda: options.show_status(record))


@app.command()
@verb
def logs(
    run: Annotated[Path, RUN_ARGUMENT],
    state: Annotated[Path | None, options.STATE_OPTION] = None,
    lines: Annotated[int, LINES_OPTION] = 30,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Print the end of the newest job's logs. Example: ectype launch local logs runs/calm"""
    from ectype.errors import EctypeError
    from ectype.launch.command import tail_of
    from ectype.launch.log_text import last_lines

    folder = options.state_of(state, str(run)).jobs
    jobs = sorted(folder.glob("*/job.json"), key=lambda path: path.stat().st_mtime)
    if not jobs:
        raise EctypeError(f"{folder} holds no jobs", "a run that was submitted", "submit it first")
    ends = {str(log): last_lines(tail_of(log, 1 << 20), lines) for log in sorted(jobs[-1].parent.glob("*.log"))}

    def show() -> None:
        for log, text in ends.items():
            print(f"== {log}\n{text}")

    emit({"logs": ends}, json_output, show)


@app.command()
@verb
def stop(
    run: Annotated[Path, RUN_ARGUMENT],
    state: Annotated[Path | None, options.STATE_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Let the job save and end, and the supervisor with it. Example: ectype launch local stop runs/calm"""
    from ectype.launch.supervise import request_stop

    folder = options.state_of(state, str(run))
    done = request_stop(folder, _jobs_in(folder))
    emit({"stop": done}, json_output, lambda: print(done))


def _jobs_in(folder: Any) -> Any:
    """The jobs that are there, for verbs that start none."""
    from ectype.launch.command import Training
    from ectype.launch.local_jobs import LocalJobs, local_backend

    return local_backend(LocalJobs(folder.jobs, Training("", ""), 1))


def _supervised(
    recipe: str, run: Path, target_steps: int | None, processes: int, placement: str,
    overrides: list[str] | None, placement_overrides: list[str] | None, index: str | None, remap: list[str] | None,
    weights: str | None, padded_rows: str | None, source: str | None, state: Path | None,
) -> Any:  # fmt: skip
    """The run as the supervisor knows it; every input is read once here, so that no job starts with a bad one."""
    from functools import partial

    from ectype.launch.command import Training
    from ectype.launch.local_jobs import LocalJobs, local_backend
    from ectype.launch.run_record import read_run
    from ectype.launch.settings import check_target, name_from
    from ectype.launch.supervise import Supervised
    from ectype.recipe.load import load_placement, load_recipe

    load_placement(placement, placement_overrides or ())
    given = tuple(overrides or ())
    duration = load_recipe(recipe, given).duration_steps
    target = duration if target_steps is None else target_steps
    check_target(recipe, given, target)
    training = Training(
        recipe, str(run), placement, given, tuple(placement_overrides or ()), index, tuple(remap or ()), weights,
        padded_rows, source, target if target < duration else None,
    )  # fmt: skip
    training.arguments()
    folder = options.state_of(state, str(run))
    backend = local_backend(LocalJobs(folder.jobs, training, processes))
    return Supervised(name_from(str(run)), str(run), target, folder, backend, partial(read_run, run))
