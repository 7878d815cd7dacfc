"""The verdict on made-up evidence: copies, faults, gaps, broken numbers, and its order in the tolerances."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from made_up_evidence import LANDMARKS, STEPS, evaluation, evaluations, grounds, log, twins

from ectype.compare.criteria import Criterion, Grounds, Outcome
from ectype.compare.held_out_criteria import KL, LOSS, LOSS_BY_DOMAIN, TOP1, held_out_criteria
from ectype.compare.noise import Noise
from ectype.compare.tolerances import Floors, SourcedNumber
from ectype.compare.trajectory import difference
from ectype.compare.trajectory_criteria import (
    DATA,
    LEARNING_RATE,
    MEAN_LOSS,
    SKIPPED,
    SKIPPED_LATER,
    SMOOTHED_LOSS,
    STEP_GRAD_NORM,
    STEP_LOSS,
    STEP_Z_LOSS,
    data_identity,
    trajectory_criteria,
)
from ectype.compare.verdict import DIFFERENT, SAME, UNDECIDED, decide
from ectype.evaluate.record import Evaluation
from ectype.recipe.reference import TrainingLog

BATCHES = {step: np.array([step, step + 1]) for step in range(1, STEPS + 1)}
CALM = grounds(twins(1e-9))
CHAOTIC = grounds(twins(0.01, count=8, chaotic_from=20), horizon=20)


def judge(
    found: dict[int, Evaluation], run: TrainingLog | None = None, on: Grounds = CALM, due: Sequence[int] = LANDMARKS
) -> tuple[str, list[Criterion]]:
    criteria = held_out_criteria(found, on)
    criteria += trajectory_criteria(difference(run or log(), log(), STEPS), on)
    criteria.append(data_identity(BATCHES, BATCHES, STEPS))
    return decide(criteria, due).answer, criteria


def named(criteria: Sequence[Criterion], name: str, landmark: int | None = None) -> Criterion:
    return next(c for c in criteria if c.name == name and c.landmark == landmark)


def test_a_perfect_copy_is_the_same_model() -> None:
    answer, criteria = judge(evaluations())
    assert answer == SAME
    assert {c.outcome for c in criteria} == {Outcome.HOLDS}
    kinds = {LOSS, LOSS_BY_DOMAIN, KL, TOP1, STEP_LOSS, STEP_GRAD_NORM, SKIPPED, DATA}
    assert {c.name for c in criteria} == kinds
    assert len(criteria) == 3 * 5 + 4


def test_a_perfect_copy_needs_no_twins() -> None:
    assert judge(evaluations(), on=grounds())[0] == SAME


def test_rounding_is_the_same_model_and_more_is_not() -> None:
    assert judge(evaluations(shift=2e-6, spread=1e-6, kl=2e-9), log(noise=2e-6))[0] == SAME
    assert judge(evaluations(shift=2e-4, spread=1e-6, kl=2e-9))[0] == DIFFERENT
    assert judge(evaluations(kl=1e-3))[0] == DIFFERENT
    assert judge(evaluations(agree=0.99))[0] == DIFFERENT


def test_one_bad_landmark_and_one_bad_domain_suffice() -> None:
    found = evaluations()
    found[50] = evaluation(50, shift=0.1)
    answer, criteria = judge(found)
    assert answer == DIFFERENT
    assert [c.landmark for c in criteria if c.outcome == Outcome.BROKEN and c.name == LOSS] == [50]
    assert {c.domain for c in criteria if c.outcome == Outcome.BROKEN and c.landmark == 50} == {None, "prose", "code"}


@pytest.mark.parametrize("lost", [{0}, {100}, {0, 50, 100}])
def test_a_missing_landmark_is_not_enough_evidence(lost: set[int]) -> None:
    found = {step: value for step, value in evaluations().items() if step not in lost}
    answer, criteria = judge(found)
    assert answer == UNDECIDED
    verdict = decide(criteria, LANDMARKS)
    assert f"landmark {min(lost)}" in verdict.reason
    assert verdict.exit_code == 3


def _with_rate(run: TrainingLog, *, factor: float = 1.0, z_shift: float = 0.0, gaps: Sequence[int] = ()) -> TrainingLog:
    rate = 1e-3 * np.cos(run.steps / 100) * np.where(run.steps == 90, factor, 1.0)
    z_loss = 5e-4 + 1e-6 * run.steps + np.where(run.steps == 60, z_shift, 0.0)
    for step in gaps:
        rate[step - 1] = z_loss[step - 1] = np.nan
    return replace(run, learning_rate=rate, z_loss=z_loss)


@pytest.mark.parametrize("on", [CALM, CHAOTIC, grounds(twins(1e-9), float32=False)])
def test_the_learning_rate_must_be_the_schedules_at_every_step(on: Grounds) -> None:
    for factor, outcome in ((1.0, Outcome.HOLDS), (1 + 5e-7, Outcome.HOLDS), (1 + 2e-6, Outcome.BROKEN)):
        run, reference = _with_rate(log(), factor=factor), _with_rate(log())
        found = named(trajectory_criteria(difference(run, reference, STEPS), on), LEARNING_RATE)
        assert found.outcome is outcome
        if factor == 1.0:
            assert found.note == "equal at all 100 steps"
        else:
            assert found.note == "largest of 100 steps, at step 90"


def test_the_z_loss_is_judged_by_the_tolerance_of_the_loss() -> None:
    for shift, outcome in ((0.0, Outcome.HOLDS), (9e-6, Outcome.HOLDS), (2e-5, Outcome.BROKEN)):
        run, reference = _with_rate(log(), z_shift=shift), _with_rate(log())
        criteria = trajectory_criteria(difference(run, reference, STEPS), CALM)
        found = named(criteria, STEP_Z_LOSS)
        assert (found.outcome, found.tolerance) == (outcome, named(criteria, STEP_LOSS).tolerance)


def test_steps_without_a_logged_number_are_left_out_and_ours_must_be_there() -> None:
    gaps = difference(_with_rate(log()), _with_rate(log(), gaps=(3, 4)), STEPS)
    outcomes = {named(trajectory_criteria(gaps, CALM), name).outcome for name in (LEARNING_RATE, STEP_Z_LOSS)}
    assert outcomes == {Outcome.HOLDS}
    lost = difference(_with_rate(log(), gaps=(3,)), _with_rate(log()), STEPS)
    assert named(trajectory_criteria(lost, CALM), LEARNING_RATE).outcome is Outcome.UNCLEAR
    without = trajectory_criteria(difference(_with_rate(log()), log(), STEPS), CALM)
    assert {LEARNING_RATE, STEP_Z_LOSS} & {criterion.name for criterion in without} == set()


def test_training_loss_alone_proves_nothing() -> None:
    criteria = trajectory_criteria(difference(log(), log(), STEPS), CALM)
    assert {c.outcome for c in criteria} == {Outcome.HOLDS}
    assert decide(criteria, LANDMARKS).answer == UNDECIDED
    assert decide(criteria, ()).answer == UNDECIDED
    assert decide([*criteria, *held_out_criteria({0: evaluation(0)}, CALM)], (0,)).answer == UNDECIDED


def test_training_loss_alone_can_disprove() -> None:
    answer, criteria = judge(evaluations(), log(shift=1e-3))
    assert answer == DIFFERENT
    assert named(criteria, STEP_LOSS).outcome == Outcome.BROKEN


def test_without_twins_a_drift_is_unclear_not_wrong() -> None:
    answer, criteria = judge(evaluations(shift=1e-3, kl=1e-5), log(shift=1e-3), grounds())
    assert answer == UNDECIDED
    assert named(criteria, LOSS, 50).rejects_beyond is None
    assert "no twin" in named(criteria, KL, 50).note


def test_floors_are_float32s_alone() -> None:
    assert judge(evaluations(shift=2e-6), on=grounds(float32=False))[0] == UNDECIDED


def test_beyond_the_horizon_the_twins_rule() -> None:
    honest = {0: evaluation(0), **{s: evaluation(s, shift=0.005, spread=0.001, kl=0.01, agree=0.99) for s in (50, 100)}}
    run = log(noise=0.01, seed=3)
    run.loss[:19] = log().loss[:19]
    run.grad_norm[:19] = log().grad_norm[:19]  # type: ignore[index]
    answer, criteria = judge(honest, run, CHAOTIC)
    assert answer == SAME, [c for c in criteria if c.outcome != Outcome.HOLDS]
    assert named(criteria, SMOOTHED_LOSS).outcome == Outcome.HOLDS
    assert named(criteria, MEAN_LOSS).outcome == Outcome.HOLDS
    assert named(criteria, STEP_LOSS).note == "equal at all 19 steps"
    assert judge(honest, log(noise=0.01), CHAOTIC)[0] == DIFFERENT
    shifted = run.loss + np.where(run.steps >= 20, 0.08, 0.0)
    answer, criteria = judge(honest, replace(run, loss=shifted), CHAOTIC)
    assert answer == DIFFERENT
    assert named(criteria, STEP_LOSS).outcome == Outcome.HOLDS
    assert named(criteria, MEAN_LOSS).outcome == Outcome.BROKEN


def test_an_early_fault_is_seen_although_late_noise_hides_it() -> None:
    found = {step: evaluation(step, shift=1e-3) for step in LANDMARKS}
    answer, criteria = judge(found, on=CHAOTIC)
    assert answer == DIFFERENT
    assert named(criteria, LOSS, 0).outcome == Outcome.BROKEN
    assert named(criteria, LOSS, 100).outcome == Outcome.HOLDS


def test_noise_above_the_ceiling_decides_nothing() -> None:
    loud = grounds(twins(1.0, chaotic_from=20), horizon=20)
    answer, criteria = judge({0: evaluation(0), **{s: evaluation(s, shift=0.5) for s in (50, 100)}}, on=loud)
    assert answer == UNDECIDED
    assert named(criteria, LOSS, 100).outcome == Outcome.UNCLEAR
    assert "ceiling" in named(criteria, LOSS, 100).tolerance_from


def test_a_wide_interval_is_unclear_and_says_how_many_tokens_would_do() -> None:
    few = {step: evaluation(step, spread=0.05) for step in LANDMARKS}
    noisy = grounds(twins(0.002, count=8), horizon=1)
    answer, criteria = judge(few, on=noisy)
    assert answer == UNDECIDED
    found = named(criteria, LOSS, 100)
    assert found.outcome == Outcome.UNCLEAR
    assert found.tokens_needed is not None
    assert found.tokens_needed > few[100].overall.targets
    assert f"{found.tokens_needed:,}" in found.note


def test_the_verdict_itself_says_how_many_tokens_would_settle_it() -> None:
    """As many as the criterion needs that needs the most; and none are named where one would stay unclear."""
    criteria = held_out_criteria(
        {step: evaluation(step, spread=0.05) for step in LANDMARKS}, grounds(twins(0.002, count=8), horizon=1)
    )
    unclear = [criterion for criterion in criteria if criterion.outcome is Outcome.UNCLEAR]
    verdict = decide(criteria, LANDMARKS)
    assert verdict.answer == UNDECIDED
    needed = max(criterion.tokens_needed or 0 for criterion in unclear)
    assert verdict.tokens_needed == needed > 0
    assert f"about {needed:,} held-out tokens" in verdict.reason
    hopeless = [replace(unclear[0], tokens_needed=None), *unclear[1:]]
    verdict = decide([*hopeless, *(c for c in criteria if c not in unclear)], LANDMARKS)
    assert verdict.tokens_needed is None
    assert "more held-out tokens alone would not settle it" in verdict.reason


def test_full_agreement_on_few_tokens_is_not_yet_agreement() -> None:
    answer, criteria = judge(evaluations(windows=2))
    assert answer == UNDECIDED
    assert named(criteria, TOP1, 0).measured == 1.0
    assert named(criteria, TOP1, 0).tokens_needed == 3000


@pytest.mark.parametrize("where", ["ours", "reference", "both"])
@pytest.mark.parametrize("on", [CALM, CHAOTIC, grounds()])
def test_a_broken_held_out_loss_is_never_the_same(where: str, on: Grounds) -> None:
    found = evaluations()
    summary = found[50].overall
    counts = {"ours": float(where != "reference"), "reference": float(where != "ours")}
    windows = found[50].domains["code"].windows
    broken = windows.model_copy(
        update={
            name: (None, *values[1:])
            for name, values, hit in (
                ("loss", windows.loss, counts["ours"]),
                ("reference_loss", windows.reference_loss, counts["reference"]),
            )
            if hit
        }
    )
    nonfinite = summary.nonfinite_targets.model_copy(update=counts)
    domain = found[50].domains["code"]
    domain = domain.model_copy(
        update={"windows": broken, "summary": domain.summary.model_copy(update={"nonfinite_targets": nonfinite})}
    )
    found[50] = found[50].model_copy(
        update={
            "overall": summary.model_copy(update={"nonfinite_targets": nonfinite}),
            "domains": found[50].domains | {"code": domain},
        }
    )
    answer, _ = judge(found, on=on)
    assert answer == (DIFFERENT if where == "ours" else UNDECIDED)


@pytest.mark.parametrize("series", ["loss", "grad_norm"])
@pytest.mark.parametrize("step", [5, 90])
@pytest.mark.parametrize("on", [CALM, CHAOTIC, grounds()])
def test_a_broken_log_is_never_the_same(series: str, step: int, on: Grounds) -> None:
    for value in (math.nan, math.inf):
        run = log()
        getattr(run, series)[step - 1] = value
        answer, _ = judge(evaluations(), run, on)
        assert answer == (DIFFERENT if series == "loss" or (value == math.inf and answer != UNDECIDED) else UNDECIDED)


def test_broken_noise_never_widens_a_tolerance() -> None:
    noise = twins(1e-9)
    broken = noise.landmarks[50].model_copy(update={"held_out_loss": (None, 1.0, 1.0), "kl_mean": (None, 1.0, 1.0)})
    on = grounds(noise.model_copy(update={"landmarks": noise.landmarks | {50: broken}}))
    answer, criteria = judge(evaluations(shift=0.01, kl=0.01), on=on)
    assert answer == DIFFERENT
    assert named(criteria, LOSS, 50).outcome == Outcome.UNCLEAR


def test_an_unfinished_run_is_not_enough_evidence() -> None:
    answer, criteria = judge(evaluations(), log(steps=60))
    assert answer == UNDECIDED
    assert "lacks 40 of 100 steps" in named(criteria, STEP_LOSS).note


def test_skipped_steps_are_exact_before_the_horizon_and_counted_beyond_it() -> None:
    other = log()
    other = replace(other, skipped=other.steps == 41)
    answer, criteria = judge(evaluations(), other)
    assert (answer, named(criteria, SKIPPED).measured) == (DIFFERENT, 2.0)
    _, criteria = judge(evaluations(), other, CHAOTIC)
    assert named(criteria, SKIPPED).outcome == Outcome.HOLDS
    assert named(criteria, SKIPPED_LATER).outcome == Outcome.HOLDS
    _, criteria = judge(evaluations(), replace(other, skipped=other.steps >= 60), CHAOTIC)
    assert named(criteria, SKIPPED_LATER).outcome == Outcome.BROKEN


def test_data_order_is_exact() -> None:
    swapped = BATCHES | {7: BATCHES[7][::-1]}
    found = data_identity(swapped, BATCHES, STEPS)
    assert (found.outcome, found.measured) == (Outcome.BROKEN, 1.0)
    assert "step 7" in found.note
    assert data_identity({k: v for k, v in BATCHES.items() if k < 90}, BATCHES, STEPS).outcome == Outcome.UNCLEAR
    assert data_identity(None, BATCHES, STEPS).outcome == Outcome.UNCLEAR
    assert data_identity(BATCHES, {}, STEPS).outcome == Outcome.UNCLEAR
    assert data_identity({k: v for k, v in BATCHES.items() if k < 90}, BATCHES, 80).outcome == Outcome.HOLDS


def test_a_stage_is_judged_by_its_own_batches_and_by_a_landmark_behind_its_first_step() -> None:
    own = {step: ids for step, ids in BATCHES.items() if step > 50}
    assert data_identity(own, BATCHES, STEPS, 50).outcome == Outcome.HOLDS
    assert data_identity(own, BATCHES, STEPS, 49).outcome == Outcome.UNCLEAR
    taken_over = {50: evaluation(50)}
    criteria = held_out_criteria(taken_over, CALM)
    assert decide(criteria, [50]).answer == SAME
    assert decide(criteria, [50], 50).answer == UNDECIDED
    assert "landmark after step 50" in decide(criteria, [50], 50).reason


def scaled(floors: Floors, factor: float) -> Floors:
    def larger(number: SourcedNumber) -> SourcedNumber:
        return number.model_copy(update={"value": number.value * factor})

    table = {name: larger(number) for name, number in floors.floors.items()}
    table["top1_agreement"] = floors.floors["top1_agreement"].model_copy(update={"value": 1 - 0.001 * factor})
    return floors.model_copy(update={"floors": table})


@pytest.mark.parametrize("noise", [None, twins(1e-9), twins(1e-4)])
def test_wider_tolerances_never_make_the_verdict_worse(noise: Noise | None) -> None:
    order = {DIFFERENT: 0, UNDECIDED: 1, SAME: 2}
    generator = np.random.default_rng(0)
    for trial in range(6):
        shift, spread, kl = generator.lognormal(-9, 3, 3)
        found = evaluations(shift=shift, spread=spread, kl=kl, agree=1 - min(0.5, kl), seed=trial)
        run = log(noise=spread, seed=trial)
        on = grounds(noise)
        answers = [
            order[judge(found, run, replace(on, floors=scaled(on.floors, factor)))[0]]
            for factor in (0.01, 1.0, 100.0, 900.0)
        ]
        assert answers == sorted(answers), (trial, answers)
