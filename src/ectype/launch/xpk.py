"""Command lines of `xpk`, as lists of arguments."""

from dataclasses import dataclass, field

from ectype.launch.command import Training, shell_text
from ectype.launch.settings import Cluster, Slice


@dataclass(frozen=True)
class Container:
    """What a job runs in."""

    image: str
    priority: str = "medium"
    storages: tuple[str, ...] = ()
    """Names of volumes that `xpk storage attach` made known to the cluster."""
    environment: dict[str, str] = field(default_factory=dict)
    grace_seconds: int = 300
    """Between the notice of an end and the end: time for a save."""
    reservation: str | None = None
    capacity: str | None = None
    """`on-demand`, `spot` or `flex`, where the cluster makes node pools by itself."""


def create_arguments(
    cluster: Cluster, machines: Slice, container: Container, name: str, training: Training
) -> list[str]:
    """`xpk workload create` for one job. Without `--quiet`: that would replace a job of the same name.

    The cluster restarts nothing by itself (`--max-restarts 0`), since it counts preemptions and faults alike.
    """
    arguments = ["xpk", "workload", "create", *_where(cluster), "--workload", name]
    arguments += ["--device-type", machines.device_type, "--num-slices", str(machines.num_slices)]
    arguments += ["--docker-image", container.image, "--priority", container.priority, "--max-restarts", "0"]
    arguments += ["--termination-grace-period-seconds", str(container.grace_seconds)]
    arguments += [part for storage in container.storages for part in ("--storage", storage)]
    arguments += [part for pair in container.environment.items() for part in ("--env", "=".join(pair))]
    arguments += ["--reservation", container.reservation] if container.reservation else []
    arguments += [f"--{container.capacity}"] if container.capacity else []
    return [*arguments, "--command", pod_command(["ectype", *training.arguments()])]


def delete_arguments(cluster: Cluster, name: str) -> list[str]:
    """`xpk workload delete` of one job; without a name it would delete all."""
    return ["xpk", "workload", "delete", *_where(cluster), "--workload", name, "--quiet"]


def pod_command(arguments: list[str]) -> str:
    """Arguments as xpk's `--command`, which goes through a shell in a pod.

    `exec` puts the program in the place of xpk's subshell, so that the notice of an end reaches it. Kubernetes reads
    `$$` as `$` and `$(NAME)` as a variable before any shell does, so each `$` is doubled.
    """
    return f"exec {escape_dollars(shell_text(arguments))}"


def escape_dollars(text: str) -> str:
    """Text that Kubernetes gives back as it was, in a container's command."""
    return text.replace("$", "$$")


def _where(cluster: Cluster) -> list[str]:
    return [
        "--cluster", cluster.cluster, "--project", cluster.project, "--zone", cluster.zone,
        "--namespace", cluster.namespace,
    ]  # fmt: skip
