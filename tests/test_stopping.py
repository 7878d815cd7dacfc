"""How a process leaves: with its own exit code, whatever comes or is missing while it does."""

import signal
import subprocess
import sys
import time

import pytest

LEAVE = """
import sys, time, types
from ectype.stopping import leave_at_once
{before}
print("leaving", flush=True)
leave_at_once({code})
"""
IN_A_JOB = (
    "shutdown = lambda: time.sleep(2)\n"
    "distributed = types.SimpleNamespace(is_initialized=lambda: True, shutdown=shutdown)\n"
    "sys.modules['jax'] = types.SimpleNamespace(distributed=distributed)"
)


def start(before, code):
    command = [sys.executable, "-c", LEAVE.format(before=before, code=code)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_farewell_does_not_change_the_exit_code(number):
    """An error must not become a preemption since the job is told to end while it says goodbye."""
    process = start(IN_A_JOB, 2)
    assert process.stdout.readline() == "leaving\n"
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(timeout=20) == 2


@pytest.mark.parametrize("stream", ["sys.stderr = None", "import os; os.close(2)", "sys.stderr.close()"])
def test_a_stream_that_is_closed_does_not_change_it_either(stream):
    assert start(stream, 75).wait(timeout=20) == 75


TWICE = """
import os, signal, sys
from ectype.errors import Stopped
from ectype.stopping import StopSignals
try:
    with StopSignals(ends_program=True) as signals, signals.at_once("nothing is lost"):
        os.kill(os.getpid(), signal.SIGTERM)
        while True: pass
except Stopped:
    os.kill(os.getpid(), signal.SIGTERM)  # Between the block and the program's end.
    sys.exit(75)
"""


def test_a_second_signal_right_after_the_first_does_not_change_it():
    assert subprocess.run([sys.executable, "-c", TWICE], check=False, timeout=30).returncode == 75
