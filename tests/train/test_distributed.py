"""How the processes of a job find each other without being told."""

import os
import socket
import subprocess
import sys

import pytest

JOIN = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
from ectype.train.distributed import join
join(sys.argv[1] if sys.argv[1:] else None, None, None)
print(jax.process_index(), jax.process_count())
"""
STEP = {
    "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "1",
    "SLURM_PROCID": "0",
}  # fmt: skip


def start(*arguments, **variables):
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "OMPI_", "TPU_"))}
    command = [sys.executable, "-c", JOIN, *arguments]
    return subprocess.Popen(command, env=clean | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("asked", [(), ("auto",)], ids=["unasked", "asked"])
def test_processes_that_srun_started_find_each_other(asked):
    job = str(os.getpid() + len(asked))  # JAX takes the port from it
    started = [start(*asked, **STEP | {"SLURM_JOB_ID": job, "SLURM_PROCID": str(number)}) for number in (0, 1)]
    assert [process.communicate(timeout=120)[0].split() for process in started] == [["0", "2"], ["1", "2"]]


@pytest.mark.parametrize("variables", [{}, {"SLURM_JOB_ID": "7"}], ids=["alone", "in a batch script without srun"])
def test_a_process_without_others_waits_for_none(variables):
    assert start(**variables).communicate(timeout=60)[0].split() == ["0", "1"]


def test_a_process_that_must_have_others_does_not_train_alone():
    """On a machine that tells of no cluster, `auto` is an error, not a run of one process."""
    output, errors = start("auto").communicate(timeout=60)
    assert output == ""
    assert "EctypeError" in errors
    assert "no cluster that tells its processes of each other" in errors


@pytest.mark.parametrize("address", ["foo", "localhost:0", "localhost:999999", ":8476", "localhost:", "h:8476x", ""])
def test_an_address_without_host_or_port_is_refused(address):
    from ectype.errors import EctypeError
    from ectype.train.distributed import join

    with pytest.raises(EctypeError, match="--coordinator"):
        join(address, 2, 1)


STOPPED = """
import os, signal, sys, time
import jax
jax.config.update("jax_platforms", "cpu")
from ectype.stopping import StopSignals
from ectype.train.distributed import join
with StopSignals() as signals:
    join(sys.argv[1], 1, 0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    print(signals.asked)
"""


def test_a_stop_right_after_the_join_is_heard():
    """JAX takes SIGTERM for a service of its own unless it is told not to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", STOPPED, f"127.0.0.1:{port}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.split() == ["True"], ran.stderr
