"""A job script for Slurm: one process per node or task, which Slurm requeues when it is preempted."""

from dataclasses import dataclass

from ectype.errors import EXIT_STOPPED, EctypeError
from ectype.launch.command import Training, shell_text


@dataclass(frozen=True)
class SlurmJob:
    """What to ask Slurm for."""

    name: str
    nodes: int
    tasks_per_node: int = 1
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    time_limit: str | None = None
    partition: str | None = None
    account: str | None = None
    log_folder: str = "."
    notice_seconds: int = 300
    """Between the notice of an end and the end: time for a save."""
    container: str | None = None
    """Image for `srun --container-image` of the pyxis plug-in."""
    environment: tuple[tuple[str, str], ...] = ()


_SCRIPT = """\
#!/bin/bash
{directives}
# Written by `ectype launch slurm`. Slurm starts one process per task; they find each other by themselves.
set -uo pipefail

{exports}# Slurm tells only this script that its time ends; the processes save when they hear of it.
trap 'scancel --signal=TERM "$SLURM_JOB_ID"' USR1 TERM

# shellcheck disable=SC2016 # quotes hand the arguments on as they are
srun --kill-on-bad-exit=0 {container}{command} &
steps=$!
code=0
# A signal ends `wait` before the processes have ended.
while true; do
  wait "$steps"
  code=$?
  kill -0 "$steps" 2>/dev/null || break
done
if [ "$code" -eq {stopped} ]; then
  echo "saved and stopped; back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def slurm_script(job: SlurmJob, training: Training) -> str:
    """The script for `sbatch`.

    Raises:
        EctypeError: a value that would break a `#SBATCH` line.
    """
    asked: list[tuple[str, object]] = [
        ("job-name", job.name), ("nodes", job.nodes), ("ntasks-per-node", job.tasks_per_node),
        ("gpus-per-node", job.gpus_per_node), ("cpus-per-task", job.cpus_per_task), ("time", job.time_limit),
        ("partition", job.partition), ("account", job.account), ("output", f"{job.log_folder}/{job.name}-%j.log"),
        ("open-mode", "append"), ("signal", f"B:USR1@{job.notice_seconds}"),
    ]  # fmt: skip
    lines = [f"#SBATCH --{name}={_plain(name, value)}" for name, value in asked if value is not None]
    exports = "".join(f"export {name}={shell_text([value])}\n" for name, value in job.environment)
    return _SCRIPT.format(
        directives="\n".join([*lines, "#SBATCH --requeue"]),
        exports=f"{exports}\n" if exports else "",
        container=f"--container-image={shell_text([job.container])} " if job.container else "",
        command=shell_text(["ectype", *training.arguments()]),
        stopped=EXIT_STOPPED,
    )


def _plain(name: str, value: object) -> str:
    text = str(value)
    if not text or not text.isprintable() or any(character in text for character in " \t'\"#\\"):
        raise EctypeError(
            f"--{name.replace('_', '-')} {text!r}", "a value without spaces, quotes or #",
            "choose a plainer one: #SBATCH lines can't hold those",
        )  # fmt: skip
    return text
