"""Training speed on this CPU in float32, beside OLMo-core's own trainer, alternating in one run.

    python benchmarks/1_training_speed.py [--turns 12] [--recipe toy-calm]

Needs the extra `reference` and ai2-olmo-core. Each side runs its whole loop (data, step, log) in a process of its own
with all cores, in turns of eight steps; the figure is the median over turns of the ratio of their times. Also the share
of the machine's matrix-product peak that our model FLOPs reach. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from figures import Figures
from peers.turns import ratio_of_pairs, seconds_per_step

TARGETS = {"toy-calm": 1.0, "toy-wide": 0.8}
WARMUP_TURNS = 2


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
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--recipe", choices=sorted(TARGETS), help="only this one")
    options = parser.parse_args()
    peak = matmul_peak()
    figures = Figures()
    peers = Path(__file__).parent / "peers"
    for name in [options.recipe] if options.recipe else TARGETS:
        recipe = load_recipe(name)
        commands = (
            [sys.executable, str(peers / "ectype_speed.py"), "train", name],
            [sys.executable, str(peers / "olmo_core_speed.py"), name, str(os.cpu_count())],
        )
        ours, theirs = seconds_per_step(commands, options.turns, WARMUP_TURNS)
        tokens = recipe.data.global_batch_tokens
        mine, other = (tokens / statistics.median(side) for side in (ours, theirs))
        share = flops_per_token(recipe.model, recipe.data.sequence_length_tokens) * mine / peak
        figures.at_least(
            f"training speed of {name} over OLMo-core's",
            round(ratio_of_pairs(ours, theirs), 3), "ratio", TARGETS[name],
            ours_tokens_per_second=round(mine), theirs_tokens_per_second=round(other),
            share_of_matmul_peak=round(share, 3), matmul_peak_gflops=round(peak / 1e9),
            load_average=os.getloadavg()[0],
        )  # fmt: skip
    figures.finish()


if __name__ == "__main__":
    main()
