"""Compile one training step for a TPU slice, in a process of its own: libtpu reads its flags once, when it loads.

    python -m ectype.plan.worker JOB.json OUT

JOB.json: {"recipe", "placement", "topology"}, resolved. OUT becomes a folder with `program.txt.gz`, the optimised
program, and `compiled.json`; the caller renames it when all is done. A program that the compiler refuses gives
{"refused": its message} instead.
"""

import gzip
import json
import os
import resource
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ectype.artifacts import read_json, write_json
from ectype.errors import EXIT_BAD_INPUT, EctypeError
from ectype.model.decoder import parameter_shapes
from ectype.plan.compiled import COMPILED, PROGRAM
from ectype.recipe.compiler_flags import LIBTPU_VARIABLE
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe
from ectype.train.optimizer import init_optimizer
from ectype.train.sharding import BATCH_AXES, check_fit, mesh_sizes
from ectype.train.state import TrainState, state_shardings
from ectype.train.step import DeviceBatch, build_train_step
from ectype.train.torus import arrange, coordinates

_MEMORY = (
    "argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes",
    "generated_code_size_in_bytes", "peak_memory_in_bytes", "host_temp_size_in_bytes", "host_argument_size_in_bytes",
)  # fmt: skip


def main(job_path: str, out: str) -> None:
    """Compile the job and write its folder."""
    job = read_json(Path(job_path), "a planning job")
    recipe, placement = Recipe.model_validate(job["recipe"]), Placement.model_validate(job["placement"])
    began = time.perf_counter()
    lowered, places = lower_step(recipe, placement, job["topology"])
    lowered_seconds, began = time.perf_counter() - began, time.perf_counter()
    folder = Path(out)
    folder.mkdir(parents=True)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        write_json(folder / COMPILED, {"refused": str(error)})
        return
    memory, usage = compiled.memory_analysis(), resource.getrusage(resource.RUSAGE_SELF)
    with gzip.open(folder / PROGRAM, "wt", compresslevel=3) as stream:
        stream.write(compiled.as_text())
    cost = compiled.cost_analysis() or {}
    found = {
        "memory": {name: getattr(memory, name) for name in _MEMORY if hasattr(memory, name)},
        "compiler_flops": cost.get("flops"), "compiler_optimal_seconds": cost.get("optimal_seconds"),
        "lower_seconds": lowered_seconds, "compile_seconds": time.perf_counter() - began,
        "compile_cpu_seconds": usage.ru_utime + usage.ru_stime, "compile_peak_bytes": usage.ru_maxrss * 1024,
        "places": places, "jax": jax.__version__, "flags": os.environ.get(LIBTPU_VARIABLE, ""),
    }  # fmt: skip
    write_json(folder / COMPILED, found)


def lower_step(recipe: Recipe, placement: Placement, topology: str) -> tuple[Any, list[tuple[int, ...]] | None]:
    """The training step of a recipe, lowered for the devices of a slice that need not exist, and their places on it.

    Raises:
        EctypeError: the mesh does not fit the slice, or the recipe the mesh.
    """
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    sizes = mesh_sizes(placement, len(devices))
    mesh = Mesh(arrange(devices, tuple(sizes.values())), tuple(sizes))
    check_fit(recipe, mesh, placement)
    step = jax.jit(build_train_step(recipe, placement, mesh), donate_argnums=0)
    lowered = step.lower(_abstract_state(recipe, placement, mesh), _abstract_batch(recipe, mesh), _scalar(jnp.float32))
    return lowered, coordinates(mesh)


def _scalar(dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((), dtype)


def _abstract_state(recipe: Recipe, placement: Placement, mesh: Mesh) -> TrainState:
    dtype = jnp.dtype(recipe.numerics.parameters)
    shapes = parameter_shapes(recipe.model)
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, dtype), shapes, is_leaf=lambda leaf: isinstance(leaf, tuple)
    )
    start = partial(init_optimizer, optimizer=recipe.optimizer, moments_dtype=recipe.numerics.moments)
    state = TrainState(params, jax.eval_shape(start, params), _scalar(jnp.int32))  # pyright: ignore[reportArgumentType]
    shardings = state_shardings(recipe, mesh, placement.moments_memory)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings
    )


def _abstract_batch(recipe: Recipe, mesh: Mesh) -> DeviceBatch:
    rows = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    windows, length = recipe.data.global_batch_windows, recipe.data.sequence_length_tokens

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)

    tokens, flags = array((windows, length), jnp.int32), array((windows,), jnp.bool_)
    segments = array((windows, length), jnp.int32) if recipe.data.document_masks else None
    packed = array((windows, length), jnp.bool_) if recipe.data.packing is not None else None
    return DeviceBatch(tokens, flags, flags, segments, packed)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EctypeError as refusal:
        print(json.dumps({"found": refusal.found, "expected": refusal.expected, "mend": refusal.mend}))
        sys.exit(EXIT_BAD_INPUT)
