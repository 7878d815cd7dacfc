"""The search takes the fastest of each axis along, never what does not fit, and never changes the recipe."""

import pytest

from ectype.errors import EctypeError
from ectype.plan.hardware import parse_slice
from ectype.plan.predict import Band
from ectype.plan.record import MemoryRecord, PlanRecord, StepRecord
from ectype.plan.scale import with_windows_of
from ectype.plan.search import search
from ectype.recipe.load import load_placement, load_recipe

WHERE = parse_slice("v5p:4x4x8")
RECIPE = load_recipe("olmo3-7b-stage2")


def band(value):
    return Band(expected=value, low=value, high=value)


def made_up(placement, seconds):
    """A plan that takes `seconds`; None: it does not fit."""
    memory = MemoryRecord(
        fits=seconds is not None, limit=100, peak=50, refused_at=None, parameters=1, moments=1, kept_activations=1,
        code=1,
    )  # fmt: skip
    step = None if seconds is None else StepRecord(
        seconds=band(seconds), compute_seconds=1, attention_seconds=band(1), exposed_collective_seconds=band(0),
        compute_cycles=1, unknown_cycles=0, attention_kernels={}, collectives=(), executed_over_model_flops=1,
        tokens_per_second=band(1), model_tflops_per_device=band(1), mfu=band(1), mfu_full_causal=1, dearest_lines=(),
    )  # fmt: skip
    return PlanRecord(
        recipe="r", placement=placement.name, topology=WHERE.name, devices=128, mesh={}, tokens_per_step=1,
        memory=memory, step=step, steps=1, chip_hours=None, days=None, compile_seconds=1, compile_peak_bytes=1,
        flags="",
    )  # fmt: skip


def test_the_fastest_of_each_axis_is_taken_along():
    def plan(placement):
        if "up" in placement.remat:
            return made_up(placement, None)
        seconds = 10 - 2 * (placement.attention_block_tokens == 1024) - (placement.micro_batch_windows == 1)
        return made_up(placement, seconds + (placement.remat == "full"))

    whole = load_placement("v5p-4x4x8", ["micro_batch_windows=null", "remat=[query, key, gate, attention_output]"])
    tried = list(search(RECIPE, whole, WHERE, plan))
    best = min(tried, key=lambda one: one.seconds)
    assert best.seconds == 7
    assert best.changed == "micro_batch_windows=1, attention_block_tokens=1024"
    assert tried[0].changed == ""
    assert any(one.seconds == float("inf") for one in tried)
    assert any(one.placement.remat == ("query", "gate") for one in tried)
    # Every placement tried holds the recipe's batch.
    for one in tried:
        rows = one.placement.mesh.data * max(one.placement.mesh.fsdp, 1)
        assert RECIPE.data.global_batch_windows % rows == 0
    assert len(tried) < 20


def test_windows_grow_with_the_devices():
    assert with_windows_of(RECIPE, 128, 512).data.global_batch_windows == 4 * RECIPE.data.global_batch_windows
    assert with_windows_of(RECIPE, 128, 64).data.global_batch_windows == RECIPE.data.global_batch_windows // 2
    with pytest.raises(EctypeError, match="whole number"):
        with_windows_of(RECIPE, 128, 0)
