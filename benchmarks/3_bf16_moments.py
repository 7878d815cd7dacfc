"""The ablation with bfloat16 moments: `toy-calm-bf16-moments` beside `toy-calm`, from the same weights and data.

    python benchmarks/3_bf16_moments.py [--until 640] [--out DIR]

The study that Ectype follows found the loss worse by 0.93 nats within 1,000 steps at its size; the target is the
direction at the end of the run: a held-out loss that is higher by more than the calm run's noise, 1e-5 nats. (The hot
run's noise, 0.01 nats and more, hides a difference of this size.) Also printed: the training loss over the last 50
updates, and how far the weights moved. Four minutes on two idle cores. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figures

from ectype.run.metrics import read_rows
from ectype.weights import tree
from ectype.weights.load import load_any_weights

NOISE_NATS = 1e-5
"""Tolerance of the calm run's held-out loss (`docs/verdict.md`)."""
REFERENCE = "package:demo/bundle"
"""Its held-out text is what both are evaluated on."""


def ectype(*arguments: str) -> Any:
    """Run one verb in a process of its own; its JSON."""
    command = [sys.executable, "-m", "ectype.cli", *arguments, "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def measures(recipe: str, run: Path, until: int) -> dict[str, float]:
    """Train, evaluate the last landmark, and measure."""
    ectype("train", recipe, "--run", str(run), "--until", str(until))
    record = ectype("evaluate", str(run), "--reference", REFERENCE, "--landmark", str(until))
    losses = [row["loss"] for row in read_rows(run).values()]
    start, end = (tree.flatten(load_any_weights(run, step=step)[0]) for step in (0, until))
    moved = sum(float(np.sum(np.square(np.asarray(end[path]) - np.asarray(start[path])))) for path in start)
    return {
        "held_out_loss": record["landmarks"][str(until)]["loss"]["ours"],
        "last_50_losses": statistics.fmean(losses[-50:]),
        "distance_from_step_0": moved**0.5,
        "skipped": sum(row["skipped"] for row in read_rows(run).values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until", type=int, default=640, help="a landmark that the reference has: 240, 400 or 640")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp())
    float32, bfloat16 = (
        measures(recipe, out / recipe, options.until) for recipe in ("toy-calm", "toy-calm-bf16-moments")
    )
    figures = Figures()
    figures.at_least(
        f"held-out loss with bfloat16 moments less float32 moments, {options.until} updates",
        bfloat16["held_out_loss"] - float32["held_out_loss"], "nats per token", NOISE_NATS,
        float32=float32, bfloat16=bfloat16,
    )  # fmt: skip
    figures.finish()


if __name__ == "__main__":
    main()
