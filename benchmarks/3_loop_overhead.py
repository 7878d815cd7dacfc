"""What the training loop adds to the jitted step, and what a background save takes from the loop.

    python benchmarks/3_loop_overhead.py [--blocks 8] [--block-steps 3] [--state-megabytes 300]

The loop is `train_run` itself on `toy-wide`. Between blocks of its updates, blocks of the bare step run in the same
process on a state and a batch of their own; the figure is the ratio of the medians of both. The first update of each
block is left out. For saves, a state of the size given is saved in the background and waited for at once, in turn: the
stall is the time until `save` returns. One JSON line per figure; exit 1 on a miss.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from figures import Figures

from ectype.model.parameters import init_parameters, parameter_shapes
from ectype.recipe.load import load_placement, load_recipe
from ectype.recipe.spec import Recipe
from ectype.train import loop
from ectype.train.checkpoint import Saver
from ectype.train.sharding import make_mesh, prepare_devices
from ectype.train.state import fresh_state
from ectype.train.step import DeviceBatch

OVERHEAD_TARGET, STALL_TARGET = 0.02, 0.10


def loop_and_bare_seconds(blocks: int, block_steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each counted update: in the loop, wall between two of its callbacks, and bare."""
    recipe, placement = load_recipe("toy-wide"), load_placement("cpu")
    prepare_devices(placement)
    mesh = make_mesh(placement)
    step_function = loop.jitted_step(recipe, placement, mesh)
    own = {"state": _fresh(recipe, mesh), "batch": _batch(recipe, mesh)}
    sides: tuple[list[float], list[float]] = ([], [])
    last = [0.0]

    def bare() -> float:
        began = time.perf_counter()
        own["state"], metrics = step_function(own["state"], own["batch"], np.float32(1e-4))
        jax.device_get(metrics)
        return time.perf_counter() - began

    def watch(row: dict[str, Any]) -> None:
        place = (row["step"] - 1) % (block_steps + 1)
        # Updates 1 and 2 of the run warm both sides up.
        if place and row["step"] > block_steps + 1:
            sides[0].append(time.perf_counter() - last[0])
        if place == block_steps:
            counted = [bare() for _ in range(block_steps + 1)][1:]
            sides[1].extend(counted if row["step"] > block_steps + 1 else [])
        last[0] = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        loop.train_run(recipe, placement, Path(folder) / "run", until=(blocks + 1) * (block_steps + 1), watch=watch)
    return sides


def save_seconds(megabytes: int, placement_name: str, rounds: int = 3) -> tuple[list[float], list[float]]:
    """Seconds until a background save lets the loop go on, and until a save waited for is complete."""
    recipe = load_recipe("toy-wide", [f"model.d_model={_width(megabytes)}", "model.head_dim=256", "landmarks=[]"])
    placement = load_placement(placement_name)
    mesh = make_mesh(placement)
    state = _fresh(recipe, mesh)
    jax.block_until_ready(state)
    stalls, whole = [], []
    with tempfile.TemporaryDirectory() as folder, Saver(Path(folder), recipe, placement.checkpoints) as saver:
        for number in range(2 * rounds + 1):
            began = time.perf_counter()
            saver.save(state, number, {})
            returned = time.perf_counter() - began
            saver.wait()
            if number:  # The first save also starts Orbax up.
                stalls.append(returned)
                whole.append(time.perf_counter() - began)
    return stalls, whole


def _width(megabytes: int) -> int:
    """The width, in whole heads, at which parameters and moments in float32 take about `megabytes`."""
    for width in range(256, 8192, 256):
        shapes = parameter_shapes(load_recipe("toy-wide", [f"model.d_model={width}", "model.head_dim=256"]).model)
        leaves = jax.tree.leaves(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
        if 12 * sum(int(np.prod(shape)) for shape in leaves) >= megabytes * 1e6:
            return width
    raise ValueError(f"{megabytes} MB is more than this benchmark makes")


def _fresh(recipe: Recipe, mesh: Any) -> Any:
    return fresh_state(init_parameters(recipe.model, 0, "float32"), recipe, mesh)


def _batch(recipe: Recipe, mesh: Any) -> DeviceBatch:
    windows, length = recipe.data.global_batch_windows, recipe.data.sequence_length_tokens
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(loop.BATCH_AXES))
    tokens = np.random.default_rng(0).integers(0, recipe.model.vocab_size, (windows, length), dtype=np.int32)
    flags = [np.full(windows, value) for value in (True, False)]
    return DeviceBatch(*(jax.device_put(array, sharding) for array in (tokens, *flags)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--block-steps", type=int, default=3)
    parser.add_argument("--state-megabytes", type=int, default=300)
    options = parser.parse_args()
    figures = Figures()
    ours, bare = map(statistics.median, loop_and_bare_seconds(options.blocks, options.block_steps))
    figures.at_most(
        "loop over the bare jitted step, toy-wide", round(ours / bare - 1, 4), "share", OVERHEAD_TARGET,
        loop_seconds=round(ours, 4), bare_seconds=round(bare, 4),
    )  # fmt: skip
    for placement in ("cpu-one", "cpu"):
        stall, whole = map(statistics.median, save_seconds(options.state_megabytes, placement))
        figures.at_most(
            f"background save's stall over a save waited for, {placement}", round(stall / whole, 4), "share",
            STALL_TARGET, stall_seconds=round(stall, 4), save_seconds=round(whole, 4),
            state_megabytes=options.state_megabytes,
        )  # fmt: skip
    figures.finish()


if __name__ == "__main__":
    main()
