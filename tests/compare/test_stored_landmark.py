"""A reference whose weights are absent: its stored record is judged by what it holds, and nothing is guessed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_up_evidence import evaluation, grounds, twins

from ectype.artifacts import package_path
from ectype.compare.criteria import Criterion, Outcome
from ectype.compare.held_out_criteria import KL, LOSS, LOSS_BY_DOMAIN, TOP1, held_out_criteria
from ectype.compare.runner import compare_run
from ectype.compare.twins import no_noise
from ectype.compare.verdict import SAME, UNDECIDED
from ectype.errors import EctypeError
from ectype.evaluate.engine import Settings
from ectype.evaluate.held_out import load_held_out
from ectype.evaluate.record import Evaluation, numbers
from ectype.evaluate.runner import evaluate_run
from ectype.evaluate.weights import Weights, open_weights, store_reference
from ectype.recipe.reference import LandmarkWeights, Reference
from ectype.run.paths import RunFolder

Copy = Callable[..., Path]
SETTINGS = Settings(batch_windows=8, devices=1)


@pytest.fixture(scope="module")
def weights() -> Weights:
    """The reference's at its last landmark."""
    return open_weights(package_path("package:demo/bundle/hf/step640"), SETTINGS)


def _stored(reference: Reference, weights: Weights, path: Path, top_ids: int, window_tokens: int = 256) -> Reference:
    """The reference with a stored record in place of its last weights."""
    store_reference(weights, load_held_out(reference, window_tokens, 1000), top_ids, SETTINGS, path)
    landmarks = reference.landmarks | {640: LandmarkWeights(weights=path)}
    return reference.model_copy(update={"landmarks": landmarks})


def _at_the_end(criteria: tuple[Criterion, ...]) -> dict[str, Criterion]:
    return {criterion.name: criterion for criterion in criteria if criterion.landmark == 640}


def test_a_record_of_every_id_gives_the_verdict_that_the_weights_give(
    copy: Copy, reference: Reference, weights: Weights, tmp_path: Path
) -> None:
    run = copy()
    without = _stored(reference, weights, tmp_path / "step640.npz", 1000)
    _, record = compare_run(run, without, no_noise())
    assert record.landmarks.stale == (640,), "what was measured beside the weights is of another input"
    evaluate_run(run, without, settings=SETTINGS)
    _, record = compare_run(run, without, no_noise())
    assert (record.verdict, record.landmarks.stale) == (SAME, ())
    found = _at_the_end(record.criteria)[KL]
    assert found.measured is not None
    assert found.measured < 1e-10
    written = RunFolder(run).evaluation(640).stat().st_mtime_ns
    evaluate_run(run, without, settings=SETTINGS)
    assert RunFolder(run).evaluation(640).stat().st_mtime_ns == written, "a record that counts is kept"


def test_a_record_of_few_ids_judges_loss_and_first_choices_and_leaves_the_divergence_open(
    copy: Copy, reference: Reference, weights: Weights, tmp_path: Path
) -> None:
    run = copy()
    without = _stored(reference, weights, tmp_path / "step640.npz", 8)
    evaluate_run(run, without, settings=SETTINGS)
    _, record = compare_run(run, without, no_noise())
    found = _at_the_end(record.criteria)
    assert [found[name].outcome for name in (LOSS, LOSS_BY_DOMAIN, TOP1)] == [Outcome.HOLDS] * 3
    assert found[KL].outcome is Outcome.UNCLEAR
    assert "its 8 top ids, which leave the mean KL anywhere from" in found[KL].note
    assert (record.verdict, record.tokens_needed) == (UNDECIDED, None)
    assert record.decided_by == ("token KL at step 640",)


def test_a_record_of_another_text_or_step_or_precision_is_refused(
    copy: Copy, reference: Reference, weights: Weights, tmp_path: Path
) -> None:
    run = copy(evaluated=False)
    other = _stored(reference, weights, tmp_path / "other.npz", 4, window_tokens=128)
    with pytest.raises(EctypeError, match="another text, cut or tokenizer"):
        evaluate_run(run, other, landmarks=[640], settings=SETTINGS)
    same = _stored(reference, weights, tmp_path / "same.npz", 4)
    with pytest.raises(EctypeError, match="computed in float32, and ours would be in bfloat16"):
        evaluate_run(
            run, same, landmarks=[640], settings=Settings(batch_windows=8, devices=1, compute_dtype="bfloat16")
        )
    assert not RunFolder(run).evaluation(640).exists()


def _bounded(lower: float, upper: float) -> Evaluation:
    """An evaluation against a stored record whose bounds on the mean KL are about these."""
    found = evaluation(50, kl=lower)
    domains = {}
    for name, domain in found.domains.items():
        targets = np.array(domain.windows.targets)
        jitter = np.random.default_rng(1).gamma(1000, 1e-3, len(targets))
        windows = domain.windows.model_copy(update={"kl_upper": numbers(upper * targets * jitter)})
        domains[name] = domain.model_copy(update={"windows": windows})
    protocol = found.protocol.model_copy(update={"top_ids": 64})
    return found.model_copy(update={"protocol": protocol, "domains": domains})


@pytest.mark.parametrize(
    ("lower", "upper", "outcome"),
    [
        (1e-9, 1e-8, Outcome.HOLDS),
        (1e-9, 1e-2, Outcome.UNCLEAR),
        (1e-2, 2e-2, Outcome.BROKEN),
        (1e-2, 3.0, Outcome.BROKEN),
    ],
)
def test_the_upper_bound_must_hold_and_the_lower_one_can_break(lower: float, upper: float, outcome: Outcome) -> None:
    criteria = held_out_criteria({50: _bounded(lower, upper)}, grounds(twins(1e-7)))
    (found,) = (criterion for criterion in criteria if criterion.name == KL)
    assert found.outcome is outcome
    assert ("64 top ids" in found.note) == (outcome is Outcome.UNCLEAR)


def test_an_older_record_without_upper_bounds_never_holds() -> None:
    record = _bounded(0.0, 0.0)
    domains = {
        name: domain.model_copy(update={"windows": domain.windows.model_copy(update={"kl_upper": ()})})
        for name, domain in record.domains.items()
    }
    criteria = held_out_criteria({50: record.model_copy(update={"domains": domains})}, grounds(twins(1e-7)))
    (found,) = (criterion for criterion in criteria if criterion.name == KL)
    assert found.outcome is Outcome.UNCLEAR
