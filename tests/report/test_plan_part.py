"""The section on a plan: what it says, and that its bars add up."""

import re

import pytest

from ectype.plan.predict import Band
from ectype.plan.record import MemoryRecord, PlanRecord, StepRecord, read_plan, write_plan
from ectype.report.plan import plan_part


def _band(value: float) -> Band:
    return Band(expected=value, low=0.9 * value, high=1.1 * value)


MEMORY = MemoryRecord(
    fits=True, limit=95 * 10**9, peak=32 * 10**9, refused_at=None, parameters=10**9, moments=2 * 10**9,
    kept_activations=20 * 10**9, code=10**9,
)  # fmt: skip
STEP = StepRecord(
    seconds=_band(2.5), compute_seconds=1.9, attention_seconds=_band(0.5), exposed_collective_seconds=_band(0.1),
    compute_cycles=3, unknown_cycles=7, attention_kernels={}, collectives=(), executed_over_model_flops=1.19,
    tokens_per_second=_band(8e5), model_tflops_per_device=_band(270), mfu=_band(0.61), mfu_full_causal=0.62,
    dearest_lines=(("model/decoder.py:103", 0.4),),
)  # fmt: skip
PLAN = PlanRecord(
    recipe="olmo3-7b-stage2", placement="v5p-4x4x8", topology="v5p:4x4x8", devices=128, mesh={"fsdp": 128},
    tokens_per_step=2**21, memory=MEMORY, step=STEP, steps=47_684, chip_hours=_band(4_800), days=_band(1.6),
    compile_seconds=400, compile_peak_bytes=5 * 10**9, flags="",
)  # fmt: skip


def _text(markup: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def test_a_plan_is_shown_with_its_bands() -> None:
    text = _text(plan_part(PLAN).markup)
    for said in ("predicted, not measured", "2.50 s (2.25 to 2.75)", "61.0 %", "model/decoder.py:103 0.400"):
        assert said in text


def test_the_bars_add_up_to_the_step_and_to_the_peak() -> None:
    bars = plan_part(PLAN).figures["plan-parts"]["data"]
    for unit, total in (("seconds", STEP.seconds.expected), ("GB", 32.0)):
        assert sum(bar["x"][0] for bar in bars if bar["y"] == [unit]) == pytest.approx(total)
    assert len({bar["name"] for bar in bars}) == len(bars) == 8


def test_a_plan_that_does_not_fit_has_no_step() -> None:
    memory = MEMORY.model_copy(update={"fits": False, "peak": None, "refused_at": 120 * 10**9})
    part = plan_part(PLAN.model_copy(update={"memory": memory, "step": None, "days": None, "chip_hours": None}))
    assert "Fits no" in _text(part.markup)
    assert "120 GB of 95.0 GB" in _text(part.markup)
    assert not part.figures


def test_a_plan_is_read_back_as_it_was_written(tmp_path) -> None:
    write_plan(tmp_path, PLAN)
    assert read_plan(tmp_path) == PLAN
