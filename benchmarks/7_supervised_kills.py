"""A supervised run of four processes, killed twenty times: it ends exactly at its target, every window read once.

    python benchmarks/7_supervised_kills.py [--kills 20] [--seed 1] [--processes 4] [--folder F]

Kills take turns: one process, all of them, the supervisor itself; SIGKILL and SIGTERM; some inside a save. In the
middle a crash at one update is injected, over which the supervisor must stop after two tries; then it is mended and a
new supervisor goes on. The loss curve must be that of an undisturbed run, bit by bit. One JSON line per figure; exit 1
on a miss. Seven to twenty minutes on two cores, as busy as they are.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from figures import Figures
from kills import Trainer, curve, every_window_once
from supervised import Disturbance, Stage, crash_until_it_stops, disturb, finish

from ectype.launch.memory import read_memory
from ectype.run.checkpoints import newest_step

KINDS = [
    Disturbance("one", "KILL"), Disturbance("supervisor", "KILL"), Disturbance("all", "TERM"),
    Disturbance("one", "TERM"), Disturbance("all", "KILL"), Disturbance("one", "KILL", in_save=True),
    Disturbance("supervisor", "TERM"),
]  # fmt: skip
STEPS_PER_KILL = 20
LONGEST_SECONDS = 12.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="work here and keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure(options, options.folder or Path(temporary))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Kill, finish, and print the figures."""
    figures, draw, began = Figures(), random.Random(options.seed), time.monotonic()
    trainer = Trainer(folder / "cache", options.kills * STEPS_PER_KILL)
    crash_step = trainer.steps - STEPS_PER_KILL
    stage = Stage(trainer, folder / "run", options.processes, crash_step)
    kinds: Counter[str] = Counter()
    supervisor = stage.supervise()
    for number in range(options.kills):
        kill = KINDS[number % len(KINDS)]
        supervisor = disturb(stage, supervisor, kill, draw, LONGEST_SECONDS)
        kinds[f"{kill.what} {kill.signal}{' in a save' if kill.in_save else ''}"] += 1
        told = {"kill": number + 1, **asdict(kill), "newest_step": newest_step(stage.run)}
        print(json.dumps(told | {"seconds": round(time.monotonic() - began)}), file=sys.stderr, flush=True)
    supervisor, crash = crash_until_it_stops(stage, supervisor)
    code, output = finish(stage, supervisor)
    if code != 0:
        sys.exit(f"exit {code}\n{output}")
    memory = read_memory(stage.state / "supervisor.json")
    assert memory is not None
    figures.at_least(
        "supervised: kills survived", sum(kinds.values()), "kills", options.kills, kinds=kinds, jobs=memory.attempt,
        seconds=round(time.monotonic() - began), processes=options.processes,
    )  # fmt: skip
    beyond = abs(newest_step(stage.run) - trainer.steps)
    figures.at_most("supervised: distance from the target", beyond, "updates", 0, target_updates=trainer.steps)
    once = every_window_once(trainer, stage.run)
    figures.at_least("supervised: every window exactly once", int(once), "true", 1)
    stopped = crash["code"] == 1 and f"injected at update {crash_step}" in crash["output"]
    figures.at_most("supervised: tries of an injected crash", crash["tries"] if stopped else 99, "tries", 2)
    straight = Stage(trainer, folder / "straight", options.processes)
    code, output = finish(straight, straight.supervise())
    same = code == 0 and curve(stage.run) == curve(straight.run)
    figures.at_least("supervised: curve equal to the undisturbed run's bit by bit", int(same), "true", 1)
    figures.finish()


if __name__ == "__main__":
    main()
