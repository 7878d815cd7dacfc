"""`ectype launch local`: processes on this machine, supervised until the run is done."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ectype.cli import launch_options as options
from ectype.cli.output import JSON_OPTION, emit, verb

if TYPE_CHECKING:
    from ectype.launch.backend import Backend
    from ectype.launch.supervise import StateFolder, Supervised

app = typer.Typer(
    help="Run a recipe as processes of this machine. Example: ectype launch local status runs/calm",
    no_args_is_help=True,
)  # fmt: skip
RUN_OPTION = typer.Option("--run", help="Run folder; an existing run is resumed.")
RUN_ARGUMENT = typer.Argument(metavar="RUN", help="Run folder.")
PROCESSES_OPTION = typer.Option("--processes", min=1, help="Processes of the job, over loopback.")
LINES_OPTION = typer.Option("--lines", min=1, help="Lines of each process's log.")


def _local(
    run: Annotated[Path, RUN_OPTION],
    processes: Annotated[int, PROCESSES_OPTION] = 1,
    placement: Annotated[str, options.PLACEMENT_OPTION] = "cpu",
    dry_run: Annotated[bool, options.DRY_RUN_OPTION] = False,
) -> None:
    """Where it runs."""


@app.command()
@verb
@options.sharing(options.training_inputs, options.ends, _local)
def submit(given: dict[str, Any]) -> None:
    """Start one job and return. Example: ectype launch local submit toy-calm --run runs/calm --processes 2"""
    from ectype.launch.supervise import submit_once

    what = _supervised(given)
    if given["dry_run"]:
        options.show_commands(what.backend, f"{what.name}-1", given["json_output"])
        return
    given["run"].parent.mkdir(parents=True, exist_ok=True)
    if (job := submit_once(what)) is None:
        options.already_done(what.run, what.target_updates, given["json_output"])
        return
    record = {"job": job, "folder": str(what.state.jobs / job)}
    emit(record, given["json_output"], lambda: print(f"{job} runs; its logs are in {record['folder']}"))


def _local_patience(
    look_every_seconds: Annotated[float, options.LOOK_OPTION] = 2.0,
    first_pause_seconds: Annotated[float, options.FIRST_PAUSE_OPTION] = 15.0,
) -> None:
    """Shorter than on a cluster."""


@app.command("resume-until-done")
@verb
@options.sharing(options.training_inputs, options.supervision, options.ends, _local, _local_patience)
def resume_until_done(given: dict[str, Any]) -> int | None:
    """Restart it until done. Example: ectype launch local resume-until-done toy-calm --run runs/calm --processes 2"""
    what = _supervised(given)
    if given["dry_run"]:
        options.show_commands(what.backend, f"{what.name}-1", given["json_output"])
        return None
    given["run"].parent.mkdir(parents=True, exist_ok=True)
    return options.drive(options.with_supervision(what, given), given["json_output"])


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
    record = options.status_record(folder, _backend(folder), partial(read_run, run))
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
    from ectype.launch.job_folder import jobs_in
    from ectype.launch.log_text import last_lines

    folder = options.state_of(state, str(run)).jobs
    jobs = jobs_in(folder)
    if not jobs:
        raise EctypeError(f"{folder} holds no jobs", "a run that was submitted", "submit it first")
    ends = {str(log): last_lines(tail_of(log, 1 << 20), lines) for log in jobs[-1].logs()}

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
    done = request_stop(folder, _backend(folder))
    emit({"stop": done}, json_output, lambda: print(done))


def _backend(folder: "StateFolder") -> "Backend":
    """The jobs that are there, for verbs that start none."""
    from ectype.launch.command import Training
    from ectype.launch.local_jobs import LocalJobs, local_backend

    return local_backend(LocalJobs(folder.jobs, Training("", ""), 1))


def _supervised(given: dict[str, Any]) -> "Supervised":
    """The run as the supervisor knows it; every input is read once here, so that no job starts with a bad one."""
    from functools import partial

    from ectype.launch.local_jobs import LocalJobs, local_backend
    from ectype.launch.run_record import read_run
    from ectype.launch.settings import local_name, target_of
    from ectype.launch.submission import check_inputs, check_paths
    from ectype.launch.supervise import Supervised
    from ectype.recipe.load import load_placement, load_recipe
    from ectype.run.paths import RunFolder

    load_placement(given["placement"], given["placement_overrides"] or ())
    overrides, run = tuple(given["overrides"] or ()), str(given["run"])
    load_recipe(given["recipe"], overrides)
    target = target_of(given["recipe"], overrides, given["target_steps"])
    training = options.training_of(given, run, target)
    training.arguments()
    folder = options.state_of(given["state"], run)
    begun = RunFolder(given["run"]).manifest.is_file()
    check_paths(training, folder.path, begun=begun)
    options.note(check_inputs(training, begun=begun))
    backend = local_backend(LocalJobs(folder.jobs, training, given["processes"]))
    return Supervised(local_name(run), run, target, folder, backend, partial(read_run, given["run"]))
