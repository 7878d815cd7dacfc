"""Several processes as one job: how they find each other, and how process 0's word becomes everybody's."""

import os
import re

import jax
import numpy as np
from jax.experimental import multihost_utils

from ectype.errors import EctypeError

HEARTBEAT_TIMEOUT_SECONDS = 60
"""After this long without a sign of a process, the runtime ends all others."""
_LAST_PORT = 65535
# `srun` sets Slurm's name for its steps; a batch script alone has no processes to find.
AUTOMATIC = "auto"
"""In the place of an address: the cluster tells, and where it does not, nothing is trained."""
_AUTO_DETECTED = (
    "SLURM_STEP_NODELIST",
    "OMPI_COMM_WORLD_SIZE",
    "TPU_WORKER_HOSTNAMES",
    "MEGASCALE_COORDINATOR_ADDRESS",
)


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Join the job's other processes, before anything touches a device; alone, do nothing.

    Args:
        coordinator: host:port of process 0. "auto": JAX finds it on TPU VMs, GKE, Slurm and Open MPI, or this is an
            error. None: the same where the environment speaks of such a cluster, else alone.
        processes, process: the job's size and this process's number, given together with `coordinator`.

    Raises:
        EctypeError: only some of the three are given, or the others cannot be reached.
    """
    automatic = coordinator == AUTOMATIC
    given = [value is not None for value in (None if automatic else coordinator, processes, process)]
    if any(given) and not all(given):
        raise EctypeError(
            f"coordinator {coordinator}, processes {processes}, process {process}", "all three, none, or auto alone",
            "give --coordinator HOST:PORT --processes N --process I to every process",
        )  # fmt: skip
    detected = any(name in os.environ for name in _AUTO_DETECTED)
    if not automatic and not any(given) and not detected:
        return
    if given[0]:
        _check_address(str(coordinator))
    # JAX would take SIGTERM for itself; `StopSignals` has it.
    jax.config.update("jax_enable_preemption_service", False)
    # Collectives between CPU processes; other platforms bring their own.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            None if automatic else coordinator, processes, process, heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS
        )
    except (RuntimeError, ValueError) as error:
        if automatic and not detected:
            raise EctypeError(
                "no cluster that tells its processes of each other", "TPU VMs, GKE, a step of Slurm, or Open MPI",
                "give --coordinator HOST:PORT --processes N --process I to every process, or none to train alone",
            ) from error  # fmt: skip
        raise EctypeError(
            f"process {process} of {processes} could not join {coordinator}: {error}", "every process of the job up",
            "check the address and that all processes were started",
        ) from error  # fmt: skip


def _check_address(coordinator: str) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not re.fullmatch("[1-9][0-9]{0,4}", port) or int(port) > _LAST_PORT:
        raise EctypeError(
            f"--coordinator {coordinator!r}", "HOST:PORT of process 0, or auto", "as --coordinator 10.0.0.1:8476"
        )


def from_first_process(number: int | None) -> int | None:
    """Process 0's `number` on every process; None stays None."""
    if jax.process_count() == 1:
        return number
    told = multihost_utils.broadcast_one_to_all(np.int64(-1 if number is None else number))
    return None if int(told) < 0 else int(told)


def meet(name: str) -> None:
    """Wait until every process has come to the point called `name`."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def gather(words: np.ndarray) -> np.ndarray:
    """Every process's `words`, uint32 [n], as uint32 [processes, n] on every process."""
    if jax.process_count() == 1:
        return words[None]
    return np.ascontiguousarray(multihost_utils.process_allgather(words))


def sum_over_processes(words: np.ndarray) -> np.ndarray:
    """The sum modulo 2^64 over all processes of `words`, uint64 [n]. Every process gets it."""
    # As pairs of 32 bits: JAX holds no 64-bit integers by default.
    return gather(words.view(np.uint32)).view(np.uint64).sum(axis=0, dtype=np.uint64)
