"""`ectype launch xpk`: jobs on a GKE cluster through xpk, supervised until the run is done."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ectype.cli import launch_options as options
from ectype.cli.output import emit, verb

if TYPE_CHECKING:
    from ectype.launch.backend import Backend
    from ectype.launch.command import Training
    from ectype.launch.run_record import Reader
    from ectype.launch.supervise import StateFolder, Supervised
    from ectype.launch.xpk import Container
    from ectype.launch.xpk_jobs import ClusterJobs

app = typer.Typer(
    help="Run a recipe on an xpk cluster. Example: ectype launch xpk submit olmo3-7b-stage1 --dry-run",
    no_args_is_help=True,
)  # fmt: skip
NAME_OPTION = typer.Option("--name", envvar="XPK_RUN_NAME", help="Name of the run and beginning of its jobs' names.")
BASE_OPTION = typer.Option(
    "--base", envvar="XPK_BASE_OUTPUT_DIR", help="Folder of runs, as gs://BUCKET/FOLDER or the job's path."
)
MOUNT_OPTION = typer.Option(
    "--mount", envvar="ECTYPE_MOUNT", metavar="GS=PATH", help="Where a job has a bucket: gs://BUCKET=/PATH."
)
CLUSTER_OPTION = typer.Option("--cluster", envvar="XPK_CLUSTER", help="Name of the cluster.")
PROJECT_OPTION = typer.Option("--project", envvar="XPK_PROJECT", help="Its project.")
ZONE_OPTION = typer.Option("--zone", envvar="XPK_ZONE", help="Zone of its machines.")
LOCATION_OPTION = typer.Option("--location", help="Location of its control plane. Default: the zone's region.")
NAMESPACE_OPTION = typer.Option("--namespace", help="Kubernetes namespace.")
DEVICE_OPTION = typer.Option("--device-type", envvar="XPK_DEVICE_TYPE", help="As xpk names it: tpu7x-512, v5p-256.")
SLICES_OPTION = typer.Option("--num-slices", envvar="XPK_NUM_SLICES", min=1, help="Slices of it.")
PRIORITY_OPTION = typer.Option("--priority", envvar="XPK_PRIORITY", help="very-low, low, medium, high, very-high.")
IMAGE_OPTION = typer.Option("--image", envvar=options.IMAGE_VARIABLES, help="Container image with Ectype in it.")
STORAGE_OPTION = typer.Option(
    "--storage", envvar="ECTYPE_STORAGE", help="Volume that `xpk storage attach` made known; may repeat."
)
ENV_OPTION = typer.Option("--env", metavar="NAME=VALUE", help="Environment of the job; no secrets. May repeat.")
OR_SMALLER_OPTION = typer.Option(
    "--or-smaller", metavar="TYPE[*N]=PLACEMENT", help="Slice to ask for instead, as tpu7x-128=tpu7x-4x4x4; may repeat."
)
RESERVATION_OPTION = typer.Option("--reservation", help="Reservation to use.")
CAPACITY_OPTION = typer.Option("--capacity", help="on-demand, spot or flex.")
GRACE_OPTION = typer.Option("--grace-seconds", min=1, help="Time for a save before a job is ended.")
LINES_OPTION = typer.Option("--lines", min=1, help="Lines of the log.")


def _place(
    name: Annotated[str | None, NAME_OPTION] = None,
    base: Annotated[str | None, BASE_OPTION] = None,
    cluster: Annotated[str | None, CLUSTER_OPTION] = None,
    project: Annotated[str | None, PROJECT_OPTION] = None,
    zone: Annotated[str | None, ZONE_OPTION] = None,
    location: Annotated[str | None, LOCATION_OPTION] = None,
    namespace: Annotated[str, NAMESPACE_OPTION] = "default",
) -> None:
    """Which run, on which cluster."""


def _job(
    mount: Annotated[list[str] | None, MOUNT_OPTION] = None,
    device_type: Annotated[str | None, DEVICE_OPTION] = None,
    num_slices: Annotated[int, SLICES_OPTION] = 1,
    priority: Annotated[str, PRIORITY_OPTION] = "medium",
    image: Annotated[str | None, IMAGE_OPTION] = None,
    storage: Annotated[list[str] | None, STORAGE_OPTION] = None,
    env: Annotated[list[str] | None, ENV_OPTION] = None,
    reservation: Annotated[str | None, RESERVATION_OPTION] = None,
    capacity: Annotated[str | None, CAPACITY_OPTION] = None,
    grace_seconds: Annotated[int, GRACE_OPTION] = 300,
    dry_run: Annotated[bool, options.DRY_RUN_OPTION] = False,
) -> None:
    """What a job asks for."""


@app.command()
@verb
@options.sharing(options.training_inputs, _place, _job, options.ends)
def submit(given: dict[str, Any]) -> None:
    """Submit one job and return. Example: ectype launch xpk submit olmo3-7b-stage1 --name stage1 --dry-run"""
    from ectype.launch.supervise import submit_once

    what = _supervised(given)
    if given["dry_run"]:
        options.show_commands(what.backend, f"{what.name}-1", given["json_output"])
        return
    if (job := submit_once(what)) is None:
        options.already_done(what.run, what.target_updates, given["json_output"])
        return
    record = {"job": job, "run": what.run, "state": str(what.state.path)}
    emit(record, given["json_output"], lambda: print(f"{job} is submitted; it writes {what.run}"))


def _sizes(
    or_smaller: Annotated[list[str] | None, OR_SMALLER_OPTION] = None,
    shrink_after_minutes: Annotated[float | None, options.SHRINK_OPTION] = None,
    grow_after_minutes: Annotated[float | None, options.GROW_OPTION] = None,
) -> None:
    """When another size is tried."""


@app.command("resume-until-done")
@verb
@options.sharing(options.training_inputs, _place, _job, _sizes, options.supervision, options.ends)
def resume_until_done(given: dict[str, Any]) -> int | None:
    """Resubmit it until done. Example: ectype launch xpk resume-until-done olmo3-7b-stage1 --target-steps 597046"""
    what, sizes = _supervised(given), 1 + len(given["or_smaller"] or ())
    if given["dry_run"]:
        options.show_commands(what.backend, f"{what.name}-1", given["json_output"], sizes)
        return None
    return options.drive(options.with_supervision(what, given, sizes), given["json_output"])


@app.command()
@verb
@options.sharing(_place, options.ends)
def status(given: dict[str, Any]) -> None:
    """Say how job and run stand. Example: ectype launch xpk status --name stage1"""
    what = _named(given)
    record = options.status_record(what.state, what.backend, what.read)
    emit(record, given["json_output"], lambda: options.show_status(record))


def _length(lines: Annotated[int, LINES_OPTION] = 200) -> None:
    """How much of it."""


@app.command()
@verb
@options.sharing(_place, _length, options.ends)
def logs(given: dict[str, Any]) -> None:
    """Print the end of the first worker's log. Example: ectype launch xpk logs --name stage1"""
    from ectype.errors import EctypeError
    from ectype.launch.memory import read_memory
    from ectype.launch.supervise import submitted_name
    from ectype.launch.xpk_jobs import read_log

    what = _named(given)
    memory = read_memory(what.state.memory)
    if memory is None or memory.attempt == 0:
        raise EctypeError(f"{what.state.path} knows of no job", "a run that was submitted", "submit it first")
    job = memory.job or submitted_name(what.name, memory)
    log = read_log(what.jobs, job, None, given["lines"])
    emit({"job": job, "log": log}, given["json_output"], lambda: print(log))


@app.command()
@verb
@options.sharing(_place, options.ends)
def stop(given: dict[str, Any]) -> None:
    """Let the job save and end, and the supervisor with it. Example: ectype launch xpk stop --name stage1"""
    from ectype.launch.supervise import request_stop

    what = _named(given)
    done = request_stop(what.state, what.backend)
    emit({"stop": done}, given["json_output"], lambda: print(done))


@dataclass(frozen=True)
class _Named:
    """A run on a cluster, as the verbs need it that submit nothing."""

    name: str
    run: str
    state: "StateFolder"
    jobs: "ClusterJobs"
    backend: "Backend"
    read: "Reader"


def _named(given: dict[str, Any]) -> _Named:
    from ectype.launch.command import Training
    from ectype.launch.settings import Cluster, check_base, check_cluster, check_name, require
    from ectype.launch.xpk import Container
    from ectype.launch.xpk_jobs import ClusterJobs, cluster_backend

    require({key: given[key] for key in ("name", "base", "cluster", "project", "zone")})
    asked = ("cluster", "project", "zone", "location", "namespace")
    where = check_cluster(Cluster(*(given[key] for key in asked)))
    jobs = ClusterJobs(where, Container(""), (), lambda placement: Training("", ""))
    name, run = check_name(given["name"]), f"{check_base(given['base'])}/{given['name']}"
    return _Named(name, run, options.state_of(given["state"], run), jobs, cluster_backend(jobs), _reader(run))


def _reader(run: str) -> "Reader":
    """How the run's record is read: in a bucket through gcloud, else through this machine's file system."""
    from functools import partial

    from ectype.launch.command import call
    from ectype.launch.run_record import read_bucket_run, read_run

    return partial(read_bucket_run, run, call) if run.startswith("gs://") else partial(read_run, Path(run))


def _supervised(given: dict[str, Any]) -> "Supervised":
    """The run as the supervisor knows it; everything is checked before anything is submitted."""
    from ectype.launch import settings
    from ectype.launch.command import check_argument
    from ectype.launch.submission import check_inputs, check_storage
    from ectype.launch.supervise import Supervised
    from ectype.launch.xpk_jobs import ClusterJobs, cluster_backend

    needed = ("name", "base", "cluster", "project", "zone", "device_type", "image")
    settings.require({key: given[key] for key in needed})
    what = _named(given)
    target, training = _training(given, what.run)
    placement = given["placement"] or settings.placement_for(given["device_type"], given["num_slices"])
    slices = [settings.check_slice(settings.Slice(given["device_type"], given["num_slices"], placement))]
    slices += [settings.parse_slice(text) for text in given.get("or_smaller") or ()]
    settings.check_smaller(slices)
    for one in slices:
        settings.check_in_image(given["recipe"], one.placement)
        settings.check_platform(one.placement, "tpu")
        training(one.placement).arguments()
    for value in (given["image"], *(given["storage"] or ())):
        check_argument(value)
    first = training(placement)
    options.note([*check_inputs(first), *check_storage(given["storage"] or (), first.run)])
    jobs = ClusterJobs(what.jobs.cluster, _container(given), tuple(slices), training)
    return Supervised(what.name, what.run, target, what.state, cluster_backend(jobs), what.read)


def _container(given: dict[str, Any]) -> "Container":
    from ectype.launch.command import check_environment
    from ectype.launch.settings import check_capacity, check_priority
    from ectype.launch.xpk import Container

    return Container(
        given["image"], check_priority(given["priority"]), tuple(given["storage"] or ()),
        check_environment(tuple(given["env"] or ())), given["grace_seconds"], given["reservation"],
        check_capacity(given["capacity"]),
    )  # fmt: skip


def _training(given: dict[str, Any], run: str) -> "tuple[int, Callable[[str], Training]]":
    """The target, and what runs by placement, with every path as the job sees it."""
    from dataclasses import replace

    from ectype.launch.settings import in_job, parse_mounts, target_of

    mounts = parse_mounts(tuple(given["mount"] or ()))
    target = target_of(given["recipe"], tuple(given["overrides"] or ()), given["target_steps"])
    paths = {name: in_job(given[name], mounts) for name in ("index", "weights", "padded_rows", "source")}
    plain = options.training_of(given | paths, str(in_job(run, mounts)), target)
    return target, lambda placement: replace(plain, placement=placement, coordinator="auto")
