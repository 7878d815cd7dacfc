"""Training speed on this CPU in float32, beside OLMo-core's own trainer, alternating in one run.

    python benchmarks/1_training_speed.py [--rounds 3] [--steps 40]

Needs the extra `reference` and ai2-olmo-core. Each side runs its whole loop (data, step, log) in a process of its own
with all cores; the figure is the ratio of the medians over all rounds. Also the share of the machine's matrix-product
peak that our model FLOPs reach. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figures

TARGETS = {"toy-calm": 1.0, "toy-wide": 0.8}
WARMUP_STEPS = 8


def ours(recipe_name: str, steps: int) -> list[float]:
    """Seconds of each step of our trainer."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ectype.cli", "train", recipe_name, "--run", folder, "--until", str(steps)]
        subprocess.run(command, check=True, capture_output=True)
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [row["step_seconds"] for row in rows][WARMUP_STEPS:]


def theirs(recipe_name: str, steps: int) -> list[float]:
    """Seconds of each step of OLMo-core's trainer."""
    script = Path(__file__).parent / "peers/olmo_core_speed.py"
    command = [sys.executable, str(script), recipe_name, str(steps), str(os.cpu_count())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["step_seconds"][WARMUP_STEPS:]


def matmul_peak(seconds: float = 3.0) -> float:
    """The highest FLOP/s of a large float32 product in NumPy's library or torch's on this machine."""
    import torch

    left, right = torch.randn(2048, 2048), torch.randn(2048, 2048)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        left @ right
        best = max(best, 2 * 2048**3 / (time.perf_counter() - began))
    return best


def main() -> None:
    from ectype.model.flops import flops_per_token
    from ectype.recipe.load import load_recipe

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    peak = matmul_peak()
    figures = Figures()
    for name, target in TARGETS.items():
        recipe = load_recipe(name)
        sides: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.rounds):
            sides[0].extend(ours(name, options.steps))
            sides[1].extend(theirs(name, options.steps))
        tokens = recipe.data.global_batch_tokens
        mine, other = (tokens / statistics.median(side) for side in sides)
        share = flops_per_token(recipe.model, recipe.data.sequence_length_tokens) * mine / peak
        figures.at_least(
            f"training speed of {name} over OLMo-core's", round(mine / other, 3), "ratio", target,
            ours_tokens_per_second=round(mine), theirs_tokens_per_second=round(other),
            share_of_matmul_peak=round(share, 3), matmul_peak_gflops=round(peak / 1e9),
            load_average=os.getloadavg()[0],
        )  # fmt: skip
    figures.finish()


if __name__ == "__main__":
    main()
