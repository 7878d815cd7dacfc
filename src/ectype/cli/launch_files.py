"""`ectype launch slurm` and `ectype launch manifest`: a job as a file, for schedulers that restart by themselves."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ectype.cli import launch_options as options
from ectype.cli.output import JSON_OPTION, emit, verb

if TYPE_CHECKING:
    from ectype.launch.command import Training
    from ectype.launch.manifest import JobSetPlan

slurm_app = typer.Typer(
    help="Run a recipe under Slurm. Example: ectype launch slurm submit toy-calm --run /shared/calm --gpus-per-node 8",
    no_args_is_help=True,
)  # fmt: skip
RUN_OPTION = typer.Option("--run", help="Run folder on a file system that all nodes share.")
SCRIPT_OPTION = typer.Option("--script", help="Write the script here. Default: NAME.sbatch.")
SUBMIT_OPTION = typer.Option("--submit", help="Hand it to sbatch at once.")
NAME_OPTION = typer.Option("--name", envvar="XPK_RUN_NAME", help="Name of the job. Default: from the run folder.")
OUT_OPTION = typer.Option("--out", help="Write the manifest here. Default: standard output.")
QUEUE_OPTION = typer.Option("--queue", help="Kueue's LocalQueue.")
DEVICE_OPTION = typer.Option(
    "--device-type", envvar="XPK_DEVICE_TYPE", help="TPU slice as CHIP-TOPOLOGY: tpu7x-4x8x8, v5p-4x4x8."
)
SECRET_OPTION = typer.Option("--secret-env", metavar="NAME=SECRET:KEY", help="Variable from a Kubernetes secret.")
BUCKET_OPTION = typer.Option("--bucket", metavar="BUCKET=PATH", help="Mount a bucket through GCS FUSE; may repeat.")
CLAIM_OPTION = typer.Option("--claim", metavar="CLAIM=PATH", help="Mount a persistent volume claim; may repeat.")
ENV_OPTION = typer.Option("--env", metavar="NAME=VALUE", help="Environment of the job; no secrets. May repeat.")
RESTARTS_OPTION = typer.Option("--failures", min=0, help="Restarts after failures; preemptions do not count.")


def _slurm_job(
    run: Annotated[Path, RUN_OPTION],
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 1,
    tasks_per_node: Annotated[int, typer.Option(min=1, help="Processes on each.")] = 1,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs of each.")] = None,
    cpus_per_task: Annotated[int | None, typer.Option(min=1, help="Cores of each process.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="As Slurm's --time.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Account.")] = None,
    container: Annotated[str | None, typer.Option(help="Image for pyxis.")] = None,
    log_folder: Annotated[str, typer.Option(help="Folder of the logs; it must exist.")] = ".",
    env: Annotated[list[str] | None, ENV_OPTION] = None,
    name: Annotated[str | None, NAME_OPTION] = None,
    script: Annotated[Path | None, SCRIPT_OPTION] = None,
    submit: Annotated[bool, SUBMIT_OPTION] = False,
    placement: Annotated[str, options.PLACEMENT_OPTION] = "gpu-8xh100",
    dry_run: Annotated[bool, options.DRY_RUN_OPTION] = False,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """What Slurm is asked for."""


@slurm_app.command("submit")
@verb
@options.sharing(options.training_inputs, _slurm_job)
def slurm_submit(given: dict[str, Any]) -> None:
    """Write a job script. Example: ectype launch slurm submit toy-calm --run /shared/calm --gpus-per-node 8"""
    from dataclasses import replace

    from ectype.launch.command import check_environment
    from ectype.launch.run_record import read_run
    from ectype.launch.slurm import SlurmJob, slurm_script
    from ectype.launch.submission import check_gpus, check_inputs

    asked = ("nodes", "tasks_per_node", "gpus_per_node", "cpus_per_task", "time_limit", "partition", "account")
    job = SlurmJob(
        _name(given), **{key: given[key] for key in (*asked, "log_folder", "container")},
        environment=tuple(check_environment(tuple(given["env"] or ())).items()),
    )  # fmt: skip
    training = _training(given)
    options.note(check_inputs(training))
    check_gpus(training, job.nodes, job.gpus_per_node)
    text = slurm_script(job, replace(training, coordinator="auto"))
    path = given["script"] or Path(f"{job.name}.sbatch")
    if given["dry_run"]:
        emit({"dry_run": text}, given["json_output"], lambda: print(text, end=""))
        return
    completed = read_run(given["run"]).completed_updates  # where this machine sees the folder
    if training.until is not None and (completed or 0) >= training.until:
        options.already_done(training.run, training.until, given["json_output"])
        return
    record = _write_and_submit(path, text, given["submit"])
    words = f"{path} is written; submit it with sbatch {path}"
    if "answer" in record:
        # Without a word it may still have been taken: a second submission would write the same run.
        words = (
            record["answer"] or f"{path} was handed to sbatch, which said nothing; look with squeue before another try"
        )
    emit(record, given["json_output"], lambda: print(words))


def _name(given: dict[str, Any]) -> str:
    from ectype.launch.settings import check_name, name_from

    return check_name(given["name"]) if given["name"] else name_from(str(given["run"]))


def _write_and_submit(path: Path, text: str, submit: bool) -> dict[str, Any]:
    from ectype.artifacts import write_bytes_atomic
    from ectype.errors import EctypeError
    from ectype.launch.command import NOT_FOUND, call

    write_bytes_atomic(path, text.encode())
    if not submit:
        return {"script": str(path)}
    ran = call(["sbatch", str(path)])
    if ran.code != 0:
        mend = "submit it where Slurm is" if ran.code == NOT_FOUND else "see sbatch's words above"
        raise EctypeError(f"sbatch {path}: {ran.last_words}", "a submitted job", f"{mend}; the script is written")
    return {"script": str(path), "answer": ran.output.strip()}


def _jobset(
    run: Annotated[str, typer.Option("--run", help="Run folder, as the job sees it, below a mounted volume.")],
    queue: Annotated[str, QUEUE_OPTION],
    image: Annotated[
        str | None, typer.Option("--image", envvar=options.IMAGE_VARIABLES, help="Container image with Ectype in it.")
    ] = None,
    device_type: Annotated[str | None, DEVICE_OPTION] = None,
    num_slices: Annotated[int, typer.Option(envvar="XPK_NUM_SLICES", min=1, help="TPU slices.")] = 1,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of each node, instead of a TPU slice.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes with GPUs.")] = 1,
    name: Annotated[str | None, NAME_OPTION] = None,
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace.")] = "default",
    priority: Annotated[str | None, typer.Option(envvar="XPK_PRIORITY", help="Priority class.")] = None,
    service_account: Annotated[str | None, typer.Option(help="Kubernetes service account.")] = None,
    env: Annotated[list[str] | None, ENV_OPTION] = None,
    secret_env: Annotated[list[str] | None, SECRET_OPTION] = None,
    bucket: Annotated[list[str] | None, BUCKET_OPTION] = None,
    claim: Annotated[list[str] | None, CLAIM_OPTION] = None,
    failures: Annotated[int, RESTARTS_OPTION] = 5,
    out: Annotated[Path | None, OUT_OPTION] = None,
    json_output: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """What goes into a JobSet."""


@verb
@options.sharing(options.training_inputs, _jobset)
def manifest(given: dict[str, Any]) -> None:
    """Write a JobSet for Kueue. Example: ectype launch manifest toy-calm --run /mnt/calm --image IMAGE --queue Q ..."""
    from ectype.launch.manifest import jobset, manifest_text
    from ectype.launch.settings import check_in_image, check_platform, placement_for
    from ectype.launch.submission import check_gpus, check_inputs, check_volumes

    if given["placement"] is None:
        slices = (given["device_type"] or "", given["num_slices"])
        given["placement"] = "gpu-8xh100" if given["gpus"] else placement_for(*slices)
    check_in_image(given["recipe"], given["placement"])
    check_platform(given["placement"], "gpu" if given["gpus"] else "tpu")
    plan, out = _plan(given), given["out"]
    training = _training(_as_the_job_sees_them(given, dict(plan.buckets)))
    mounted = [path for _, path in plan.buckets + plan.claims]
    options.note([*check_inputs(training), *check_volumes(training, mounted)])
    if given["gpus"]:
        check_gpus(training, given["nodes"], given["gpus"])
    text = manifest_text(plan, training)
    if out is not None:
        from ectype.artifacts import write_bytes_atomic

        write_bytes_atomic(out, text.encode())
        print(f"{out} is written; apply it with kubectl apply -f {out}", file=sys.stderr)
    record = {"manifest": jobset(plan, training)}
    emit(record, given["json_output"], lambda: None if out else print(text, end=""))


def _plan(given: dict[str, Any]) -> "JobSetPlan":
    from ectype.launch.command import check_argument, check_environment, check_secrets
    from ectype.launch.manifest import JobSetPlan, gpu_machines, tpu_machines
    from ectype.launch.settings import check_object, parse_volumes, require

    require({"image": given["image"]})
    if given["gpus"] is None:
        require({"device_type": given["device_type"]})
        machines = tpu_machines(given["device_type"], given["num_slices"])
    else:
        machines = gpu_machines(given["gpus"], given["nodes"])
    check_argument(given["image"])
    kinds = {"queue": "localqueues", "namespace": "namespaces", "priority": "priorityclasses"}
    for name, kind in (kinds | {"service_account": "serviceaccounts"}).items():
        if given[name] is not None:
            check_object(f"--{name.replace('_', '-')}", given[name], kind)
    return JobSetPlan(
        _name(given), given["image"], given["queue"], machines,
        given["namespace"], given["priority"], tuple(check_environment(tuple(given["env"] or ())).items()),
        check_secrets(tuple(given["secret_env"] or ())), parse_volumes("--bucket", given["bucket"]),
        parse_volumes("--claim", given["claim"]), given["service_account"], given["failures"],
    )  # fmt: skip


def _as_the_job_sees_them(given: dict[str, Any], buckets: dict[str, str]) -> dict[str, Any]:
    """The paths of the job, those in a mounted bucket as paths of the mount."""
    from ectype.launch.settings import in_job

    mounts = {f"gs://{bucket}": path.rstrip("/") for bucket, path in buckets.items()}
    names = ("run", "index", "weights", "padded_rows", "source")
    return given | {name: in_job(given[name], mounts, "--bucket BUCKET=/PATH") for name in names}


def _training(given: dict[str, Any]) -> "Training":
    from ectype.launch.settings import only_in_job, target_of

    until = given["target_steps"]
    if until is not None or not only_in_job(given["recipe"]):
        until = target_of(given["recipe"], tuple(given["overrides"] or ()), until)
    training = options.training_of(given, str(given["run"]), until)
    training.arguments()
    return training
