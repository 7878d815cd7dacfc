"""From what the compiler said to the record of a plan."""

import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ectype.model.flops import flops_per_token
from ectype.model.parameters import parameter_count
from ectype.model.splash import splash_block_tokens
from ectype.plan.attention_cost import AttentionShape
from ectype.plan.collective_cost import Links
from ectype.plan.compiled import Compiled
from ectype.plan.hardware import Slice
from ectype.plan.predict import Band, Costs, costs
from ectype.plan.program import parse_program
from ectype.plan.record import MemoryRecord, PlanRecord, StepRecord
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe
from ectype.train.sharding import device_windows, mesh_sizes


def plan_record(recipe: Recipe, placement: Placement, where: Slice, compiled: Compiled) -> PlanRecord:
    """Put together what the compiler said and what the models make of it."""
    mesh = mesh_sizes(placement, where.devices)
    memory = _memory(recipe, placement, where, mesh, compiled.facts)
    step = None
    if memory.fits:
        program = parse_program(compiled.program_text())
        links = Links(mesh, where.hardware, compiled.facts.get("places"))
        found = costs(program, recipe.model, _attention_shape(recipe, placement, mesh), links)
        step = _step(recipe, where, found)
    steps = recipe.duration_steps
    hours = None if step is None else _scaled(step.seconds, steps / 3600)
    return PlanRecord(
        recipe=recipe.name, placement=placement.name, topology=where.name, devices=where.devices, mesh=mesh,
        tokens_per_step=recipe.data.global_batch_tokens, memory=memory, step=step, steps=steps,
        chip_hours=None if hours is None else _scaled(hours, where.chips),
        days=None if hours is None else _scaled(hours, 1 / 24),
        compile_seconds=compiled.facts.get("compile_seconds"),
        compile_peak_bytes=compiled.facts.get("compile_peak_bytes"), flags=compiled.facts.get("flags"),
    )  # fmt: skip


def _attention_shape(recipe: Recipe, placement: Placement, mesh: Mapping[str, int]) -> AttentionShape:
    windows = device_windows(recipe, mesh)
    length = recipe.data.sequence_length_tokens
    # A micro-batch runs its own kernels, which the program's loops count.
    sequences = placement.micro_batch_windows or windows
    heads = recipe.model.n_heads // (mesh["tensor"] * mesh["context"])
    block = splash_block_tokens(length, placement.attention_block_tokens) or length
    return AttentionShape(sequences, length, None, heads, recipe.model.head_dim, block)


def _memory(
    recipe: Recipe, placement: Placement, where: Slice, mesh: Mapping[str, int], facts: Mapping[str, Any]
) -> MemoryRecord:
    weights = parameter_count(recipe.model)
    share = mesh["fsdp"] * mesh["tensor"]
    numerics, limit = recipe.numerics, where.hardware.chip.memory_bytes_per_device
    moments = 2 * weights * jnp.dtype(numerics.moments).itemsize // share
    memory, refused = facts.get("memory"), facts.get("refused")
    peak = None if memory is None else int(memory["peak_memory_in_bytes"])
    return MemoryRecord(
        fits=peak is not None and peak <= limit, limit=limit, peak=peak,
        refused_at=None if refused is None else refused_bytes(refused),
        parameters=weights * jnp.dtype(numerics.parameters).itemsize // share,
        moments=moments if placement.moments_memory == "device" else 0,
        kept_activations=kept_activation_bytes(recipe, placement, mesh),
        code=None if memory is None else int(memory["generated_code_size_in_bytes"]),
    )  # fmt: skip


def refused_bytes(message: str) -> int | None:
    """How much memory the compiler says a refused program needs.

    `Used 120.51G of 95.74G hbm`, or `required for HLO temporaries (6.25T) exceeds available HBM (95.74G)`.
    """
    used, temporaries = r"Used ([\d.]+)([KMGT]) of [\d.]+[KMGT] hbm", r"\(([\d.]+)([KMGT])\) exceeds available HBM"
    match = re.search(used, message) or re.search(temporaries, message)
    return None if match is None else int(float(match[1]) * 1024 ** ("KMGT".index(match[2]) + 1))


def kept_activation_bytes(recipe: Recipe, placement: Placement, mesh: Mapping[str, int]) -> int:
    """Bytes of one device for what the placement keeps by name between the passes, over all layers."""
    if isinstance(placement.remat, str):
        return 0
    model, tensor = recipe.model, mesh["tensor"]
    query, key = model.n_heads * model.head_dim // tensor, max(model.n_kv_heads // tensor, 1) * model.head_dim
    width = {
        "layer_input": model.d_model, "query": query, "key": key, "value": key, "context": query,
        "attention_residuals": query, "attention_output": model.d_model, "gate": model.d_ffn // tensor,
        "up": model.d_ffn // tensor, "mlp_output": model.d_model,
    }  # fmt: skip
    windows = device_windows(recipe, mesh)
    tokens = (placement.micro_batch_windows or windows) * recipe.data.sequence_length_tokens // mesh["context"]
    normaliser = 4 * model.n_heads // tensor if "attention_residuals" in placement.remat else 0
    a_token = sum(width[name] for name in placement.remat) * jnp.dtype(recipe.numerics.compute).itemsize + normaliser
    return tokens * model.n_layers * a_token


def _step(recipe: Recipe, where: Slice, found: Costs) -> StepRecord:
    length, tokens = recipe.data.sequence_length_tokens, recipe.data.global_batch_tokens
    seconds = found.step_seconds
    peak = where.hardware.chip.peak_flops_per_device
    model_flops = flops_per_token(recipe.model, length) * tokens / where.devices
    full_causal = flops_per_token(recipe.model, length, full_causal=True) * tokens / where.devices
    return StepRecord(
        seconds=seconds, compute_seconds=found.compute_seconds,
        attention_seconds=found.attention_seconds,
        exposed_collective_seconds=found.exposed_seconds,
        compute_cycles=found.compute_cycles, unknown_cycles=found.unknown_cycles,
        attention_kernels=found.attention_kernels,
        collectives=tuple(found.collectives),
        executed_over_model_flops=(found.product_flops + found.attention_flops) / model_flops,
        tokens_per_second=_rate(tokens, seconds),
        model_tflops_per_device=_rate(model_flops / 1e12, seconds), mfu=_rate(model_flops / peak, seconds),
        mfu_full_causal=full_causal / peak / seconds.expected, dearest_lines=tuple(found.dearest),
    )  # fmt: skip


def _rate(amount: float, seconds: Band) -> Band:
    return Band(expected=amount / seconds.expected, low=amount / seconds.high, high=amount / seconds.low)


def _scaled(band: Band, factor: float) -> Band:
    return Band(expected=band.expected * factor, low=band.low * factor, high=band.high * factor)
