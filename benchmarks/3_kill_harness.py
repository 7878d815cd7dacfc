"""Random kills over one run: it finishes, every window is read exactly once, and the loss curve is the undisturbed one.

    python benchmarks/3_kill_harness.py [--kills 200] [--seed 1] [--fixed | --hop] [--folder F --minutes M]

Half of the kills are SIGKILL, half SIGTERM, some of these twice; half strike inside a save. One run keeps its device
count and must equal the undisturbed run to the last bit; another draws 1, 2, 4 or 8 devices at each start. Each kill
is one line of `3_kill_harness.jsonl` beside this script. With --folder and --minutes it goes on where it was stopped.
One JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from figures import Figures
from kills import Trainer, curve, every_window_once, kill_often, largest_loss_difference

from ectype.errors import EXIT_STOPPED

STEPS_PER_KILL = 8
LOG = Path(__file__).with_suffix(".jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="work here, and go on with what is there")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this long; exit 75")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--fixed", action="store_true", help="only the run of one device count")
    only.add_argument("--hop", action="store_true", help="only the run of changing device counts")
    options = parser.parse_args()
    figures, deadline = Figures(), time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        trainer = Trainer(folder / "cache", options.kills * STEPS_PER_KILL + 30)
        straight = folder / "straight"
        trainer.finish(straight, placement=("checkpoints.every_steps=100000",))
        for name, hop in (("fixed", False), ("hop", True)):
            if options.hop == hop or not (options.hop or options.fixed):
                measure(name, hop, trainer, folder, options, deadline, figures)
    figures.finish()


def measure(
    name: str, hop: bool, trainer: Trainer, folder: Path, options: argparse.Namespace, deadline: float, figures: Figures
) -> None:
    """Kill one run until it has had enough, finish it and print its figures."""
    run, straight, log = folder / name, folder / "straight", folder / f"{name}.jsonl"

    def told() -> list[dict[str, Any]]:
        return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []

    while (number := len(told()) + 1) <= options.kills:
        if time.monotonic() > deadline:
            sys.exit(EXIT_STOPPED)
        with open(log, "a") as stream:
            kill_often(
                trainer, run, range(number, number + 1), hop=hop, seed=options.seed,
                tell=lambda kill: print(json.dumps({"run": name, **asdict(kill)}), file=stream),
            )  # fmt: skip
    trainer.finish(run)
    kills = told()
    with open(LOG, "a") as stream:
        stream.write(log.read_text())
    more = {
        "in_saves": sum(kill["in_save"] for kill in kills),
        "median_seconds_to_kill": statistics.median(kill["seconds"] for kill in kills),
        "largest_relative_loss_difference": largest_loss_difference(run, straight),
    }
    figures.at_least(f"{name}: kills survived", len(kills), "kills", options.kills, **more)
    once = every_window_once(trainer, run)
    figures.at_least(f"{name}: every window exactly once", int(once), "true", 1, steps=trainer.steps)
    if not hop:
        same = curve(run) == curve(straight)
        figures.at_least(f"{name}: curve equal to the undisturbed run's bit by bit", int(same), "true", 1)


if __name__ == "__main__":
    main()
