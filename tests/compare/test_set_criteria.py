"""Further held-out sets in the verdict: judged in pairs like the reference's own text, due once they are named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_up_evidence import DOMAINS, LANDMARKS, evaluation, evaluations, grounds, twins

from ectype.compare.criteria import Outcome
from ectype.compare.held_out_criteria import LOSS_BY_SET, held_out_criteria, set_criteria
from ectype.compare.noise import Noise, landmark_noise
from ectype.compare.record import changed_since, read_verdict
from ectype.compare.runner import compare_run
from ectype.compare.twins import no_noise, twins_noise
from ectype.compare.verdict import DIFFERENT, SAME, UNDECIDED, decide, label
from ectype.evaluate.engine import Settings
from ectype.evaluate.runner import evaluate_run
from ectype.recipe.load import load_recipe, recipe_hash, to_yaml
from ectype.recipe.reference import Reference
from ectype.recipe.spec import HeldOutSet
from ectype.run.manifest import Manifest, Perturbation, write_manifest
from ectype.run.paths import RunFolder

Copy = Callable[..., Path]


def _with_sets(noise: Noise, **sets: float) -> Noise:
    """Twins that differ on each set by about the given number of nats."""
    generator = np.random.default_rng(3)
    drawn = {name: tuple((generator.normal(0, 1, noise.twins) * size).tolist()) for name, size in sets.items()}
    landmarks = {
        step: found.model_copy(update={"held_out_loss_sets": drawn}) for step, found in noise.landmarks.items()
    }
    return noise.model_copy(update={"landmarks": landmarks})


def test_a_set_within_the_floor_holds_at_every_landmark() -> None:
    found = set_criteria({"c4": evaluations(shift=1e-7)}, LANDMARKS, grounds())
    assert [(c.name, c.domain, c.landmark, c.outcome) for c in found] == [
        (LOSS_BY_SET, "c4", step, Outcome.HOLDS) for step in LANDMARKS
    ]
    assert found[0].measured == pytest.approx(1e-7, rel=1e-3)
    assert label(found[2]) == "held-out loss by set at step 100 (c4)"


def test_a_set_far_beyond_its_twins_is_broken_and_decides() -> None:
    sets = {"c4": evaluations(shift=0.5), "paloma": evaluations(shift=1e-7)}
    noise = _with_sets(twins(1e-4, chaotic_from=20), c4=1e-4, paloma=1e-4)
    under = grounds(noise, horizon=20)
    found = set_criteria(sets, LANDMARKS, under)
    assert {c.outcome for c in found if c.domain == "c4" and c.landmark} == {Outcome.BROKEN}
    assert {c.outcome for c in found if c.domain == "paloma"} == {Outcome.HOLDS}
    verdict = decide(held_out_criteria(evaluations(), under) + found, LANDMARKS)
    assert verdict.answer == DIFFERENT
    assert "(c4)" in verdict.decided_by[0]


def test_without_noise_of_the_set_a_difference_proves_nothing() -> None:
    """The twins' noise on the verdict's own text is no noise on another one."""
    found = set_criteria({"c4": evaluations(shift=0.5)}, LANDMARKS, grounds(twins(1e-4, chaotic_from=20), horizon=20))
    assert {c.outcome for c in found} == {Outcome.UNCLEAR}
    assert {c.rejects_beyond for c in found} == {None}


def test_sets_share_out_the_error_of_their_family() -> None:
    noise = _with_sets(twins(1e-4), **{f"set {n}": 1e-3 for n in range(8)})
    alone = set_criteria({"set 0": evaluations()}, LANDMARKS, grounds(noise, horizon=1))
    sets = {f"set {n}": evaluations() for n in range(8)}
    together = set_criteria(sets, LANDMARKS, grounds(noise, horizon=1))
    tolerances = [
        next(c.rejects_beyond for c in found if (c.domain, c.landmark) == ("set 0", 100)) for found in (alone, together)
    ]
    assert tolerances[0] is not None
    assert tolerances[1] is not None
    assert tolerances[1] > tolerances[0]


def test_a_named_set_that_was_not_evaluated_leaves_the_verdict_open() -> None:
    known = evaluations()
    del known[100]
    found = set_criteria({"c4": known}, LANDMARKS, grounds())
    assert [c.outcome for c in found] == [Outcome.HOLDS, Outcome.HOLDS, Outcome.UNCLEAR]
    assert "not evaluated on c4" in found[2].note
    whole = held_out_criteria(evaluations(), grounds())
    assert decide(whole, LANDMARKS).answer == SAME
    verdict = decide(whole + found, LANDMARKS)
    assert (verdict.answer, verdict.tokens_needed) == (UNDECIDED, None)


def test_a_loss_that_is_not_finite_is_counted_over_the_whole_set() -> None:
    """Also where a domain of the set bears the set's name."""
    broken = evaluation(100)
    counts = broken.overall.nonfinite_targets.model_copy(update={"ours": 3.0})
    broken = broken.model_copy(update={"overall": broken.overall.model_copy(update={"nonfinite_targets": counts})})
    (found,) = set_criteria({DOMAINS[0]: {100: broken}}, (100,), grounds())
    assert (found.outcome, "3 targets" in found.note) == (Outcome.BROKEN, True)


def test_noise_on_sets_is_twin_less_run() -> None:
    noise = landmark_noise([evaluation(0)], {"c4": [evaluation(0, shift=0.25), evaluation(0, shift=-0.5)]})
    assert noise.held_out_loss_sets["c4"] == pytest.approx((-0.25, 0.5))


def test_a_run_is_judged_on_the_sets_that_recipe_and_reference_name(
    copy: Copy, reference: Reference, make_manifest: Callable[..., Manifest]
) -> None:
    run = copy()
    write_manifest(run, make_manifest())
    devil = reference.held_out.domains["first"]
    small = HeldOutSet(tokens={"devil": devil}, dtype="uint16", window_tokens=32, first_tokens=64)
    wider = reference.model_copy(update={"sets": {"small": small}})
    recipe = load_recipe(str(run / "recipe.yaml"), [f"evaluation.sets={{a/b: {{tokens: {devil}, window_tokens: 64}}}}"])
    recipe = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"bootstrap_samples": 300})})
    (run / "recipe.yaml").write_text(to_yaml(recipe))
    _, record = compare_run(run, wider, no_noise())
    assert record.verdict == UNDECIDED, "named sets are due"
    evaluate_run(run, wider, settings=Settings(batch_windows=8))
    _, record = compare_run(run, wider, no_noise())
    assert record.verdict == SAME
    judged = {(c.domain, c.landmark): c.outcome for c in record.criteria if c.name == LOSS_BY_SET}
    assert judged == dict.fromkeys([(n, s) for n in ("small", "a/b") for s in (0, 640)], Outcome.HOLDS)
    path = RunFolder(run).set_evaluation("a/b", 640)
    assert f"evaluations/{path.name}" in record.evidence
    assert changed_since(run, read_verdict(run), recipe_hash(recipe)) == ()
    twin = RunFolder(run).twin(1)
    copy("run/twins/1")
    (twin.path / "recipe.yaml").write_text(to_yaml(recipe))
    write_manifest(twin.path, make_manifest(perturbation=Perturbation(scale=1e-6, seed=1)))
    noise = twins_noise(run, wider, [1])
    assert noise.record is not None
    assert set(noise.record.landmarks[640].held_out_loss_sets) == {"small", "a/b"}
    path.write_bytes(path.read_bytes() + b"\n")
    assert changed_since(run, read_verdict(run), recipe_hash(recipe)) == (f"evaluations/{path.name}",)
