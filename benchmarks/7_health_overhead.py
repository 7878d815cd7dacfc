"""What watching over a run costs its loop: the judgement of an update, a heartbeat, a probe of the devices.

    python benchmarks/7_health_overhead.py [--updates 20000]

The judgement is timed in the CPU seconds of the loop's own thread, so that other jobs do not count. Heartbeats are
written by a thread of their own, and a probe is made every `probe_every_steps` updates. One JSON line per figure; exit
1 on a miss.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from figures import Figures

from ectype.recipe.placement import Health
from ectype.train.heartbeat import Pulse
from ectype.train.probe import open_probe
from ectype.train.vitals import Vitals
from ectype.train.watchdog import Watchdog

UPDATE_TARGET_SECONDS, HEARTBEAT_TARGET_SECONDS, PROBE_TARGET_SECONDS = 1e-4, 5e-3, 2e-2


def update_seconds(updates: int, pulse: Pulse, policy: Health) -> float:
    """Of one judgement, the mean over `updates` that are well."""
    noise = np.random.default_rng(0).standard_normal(updates + policy.spike_window_updates)
    losses = (2 + 0.01 * noise).tolist()
    vitals = Vitals(policy, pulse, np.array(losses[updates:]), print, None)
    row = {"grad_norm": 1.0, "step_seconds": 1.0, "data_wait_seconds": 0.1, "save_stall_seconds": 0.0}
    rows = [{"step": step, "loss": loss} | row for step, loss in enumerate(losses[:updates], 1)]
    began = time.thread_time()
    for step, row in enumerate(rows):
        vitals.updated(row, float(step))
    return (time.thread_time() - began) / updates


def heartbeat_seconds(pulse: Pulse, count: int = 50) -> float:
    """Of writing one heartbeat."""
    began = time.thread_time()
    for _ in range(count):
        pulse.write()
    return (time.thread_time() - began) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=20_000)
    options = parser.parse_args()
    policy, figures = Health(), Figures()
    with tempfile.TemporaryDirectory() as folder:
        pulse = Pulse(Path(folder), Watchdog(60, 0, 1), policy, 0, 1)
        seconds = update_seconds(options.updates, pulse, policy)
        figures.at_most("judging one update", round(seconds, 7), "seconds", UPDATE_TARGET_SECONDS)
        figures.at_most(
            "writing one heartbeat", round(heartbeat_seconds(pulse), 6), "seconds", HEARTBEAT_TARGET_SECONDS,
            every_seconds=policy.heartbeat_seconds,
        )  # fmt: skip
    probe = open_probe(jax.local_devices(), "float32")
    figures.at_most(
        "probing one CPU device", round(statistics.median(probe() for _ in range(15)), 6), "seconds",
        PROBE_TARGET_SECONDS, every_updates=policy.probe_every_steps,
    )  # fmt: skip
    figures.finish()


if __name__ == "__main__":
    main()
