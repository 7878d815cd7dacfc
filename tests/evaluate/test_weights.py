"""Any two sets of weights, and weights beside a stored reference, by float64 and by each other."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.errors import EctypeError
from ectype.evaluate.engine import Settings
from ectype.evaluate.stored_reference import read_stored, write_stored
from ectype.evaluate.weights import (
    Weights,
    evaluate_against_stored,
    evaluate_weights,
    open_weights,
    store_reference,
    text_for,
)
from ectype.model.decoder import forward, head_logits
from ectype.recipe.spec import HeldOutSet

ONE = Settings(batch_windows=4, devices=1)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> HeldOutSet:
    """Two short domains of the bundle, cut so that batches hold both."""
    folder = tmp_path_factory.mktemp("probe")
    domains = {}
    for name, windows in (("devil", 3), ("tz", 2)):
        source = Path(__file__).parents[2] / f"src/ectype/demo/bundle/tokens/heldout/{name}.npy"
        domains[name] = folder / f"{name}.npy"
        np.fromfile(source, "<u2")[: 64 * windows].tofile(domains[name])
    return HeldOutSet(tokens=domains, dtype="uint16", window_tokens=64)


@pytest.fixture(scope="module")
def pair(imported: Callable[[int], Path]) -> tuple[Weights, Weights]:
    return open_weights(imported(640), ONE), open_weights(imported(400), ONE)


def log_probabilities(weights: Weights, windows: np.ndarray) -> np.ndarray:
    """float64 log-probabilities of the real rows at every scored place, [N, P, V]."""
    subject = weights.subject
    logits = head_logits(subject.params, forward(subject.params, windows, subject.model), subject.model)
    values = np.asarray(logits, np.float64)[:, :-1, : subject.model.vocab_size]
    return (
        values
        - np.log(np.exp(values - values.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - values.max(-1, keepdims=True)
    )


def test_two_checkpoints_are_compared_as_float64_compares_them(
    pair: tuple[Weights, Weights], probe: HeldOutSet
) -> None:
    found = evaluate_weights(pair[0], text_for(pair[0], probe, None), ONE, pair[1])
    assert isinstance(probe.tokens, dict)
    divergences, agreements = [], []
    for name, path in probe.tokens.items():
        windows = np.fromfile(path, "<u2").reshape(-1, 64).astype(np.int32)
        ours, reference = (log_probabilities(side, windows) for side in pair)
        kl = (np.exp(reference) * (reference - ours)).sum(-1)
        agree = ours.argmax(-1) == reference.argmax(-1)
        loss = -np.take_along_axis(ours, windows[:, 1:, None], -1)
        summary = found.domains[name].summary
        assert summary.targets == kl.size
        assert summary.loss.ours == pytest.approx(loss.mean(), abs=2e-6)
        assert summary.kl_mean == pytest.approx(kl.mean(), rel=1e-5)
        assert summary.top1_agreement == pytest.approx(agree.mean(), abs=1e-12)
        divergences.append(kl.ravel())
        agreements.append(agree.ravel())
    kl = np.concatenate(divergences)
    overall = found.overall
    assert overall.kl_median == pytest.approx(np.median(kl), rel=1e-4)
    assert overall.kl_p99 == pytest.approx(np.quantile(kl, 0.99), rel=1e-4)
    assert overall.kl_max == pytest.approx(kl.max(), rel=1e-4)
    assert found.protocol.kl == "KL(reference || ours) over vocabulary_rows, nats per token"
    assert (found.protocol.vocabulary_rows, found.protocol.compute_dtype) == (1000, "float32")


def test_the_other_direction_is_another_number(pair: tuple[Weights, Weights], probe: HeldOutSet) -> None:
    text = text_for(pair[0], probe, None)
    one, other = (evaluate_weights(ours, text, ONE, reference) for ours, reference in (pair, pair[::-1]))
    assert one.overall.kl_mean != pytest.approx(other.overall.kl_mean, rel=1e-3)
    assert one.overall.loss.ours == pytest.approx(other.overall.loss.reference, abs=1e-7)


@pytest.mark.parametrize("top", [5, 1000])
def test_a_stored_reference_bounds_what_the_weights_themselves_give(
    pair: tuple[Weights, Weights], probe: HeldOutSet, tmp_path: Path, top: int
) -> None:
    ours, reference = pair
    text = text_for(reference, probe, None)
    assert store_reference(reference, text, top, ONE, tmp_path / "reference.npz") == text.targets
    found = evaluate_against_stored(ours, tmp_path / "reference.npz", Settings(batch_windows=3, devices=1))
    whole = evaluate_weights(ours, text, ONE, reference)
    for name, domain in whole.domains.items():
        bounded, summary = found.domains[name].summary, domain.summary
        assert bounded.targets == summary.targets
        assert bounded.loss.reference == pytest.approx(summary.loss.reference, abs=1e-6)
        assert bounded.loss_all_rows.ours == pytest.approx(summary.loss_all_rows.ours, abs=1e-6)
        assert bounded.top1_agreement == summary.top1_agreement
        assert bounded.kl_mean is not None
        assert summary.kl_mean is not None
        assert bounded.kl_upper_mean is not None
        if top == 1000:
            assert bounded.kl_mean == pytest.approx(summary.kl_mean, rel=1e-4)
            assert bounded.tail_mass_mean == 0
        else:
            assert bounded.kl_mean < summary.kl_mean < bounded.kl_upper_mean
    assert found.protocol.top_ids == top
    assert found.protocol.kl.startswith("lower bound on KL(reference || ours)")
    assert found.inputs.reference == reference.sha256


def test_rows_over_several_devices_say_the_same(
    pair: tuple[Weights, Weights], probe: HeldOutSet, tmp_path: Path
) -> None:
    text = text_for(pair[0], probe, None)
    one = evaluate_weights(pair[0], text, ONE, pair[1])
    spread = Settings(batch_windows=4, devices=4)
    paths = pair[0].subject.path, pair[1].subject.path
    split = Settings(batch_windows=4, devices=4, split_weights=True)
    for settings in (spread, split):
        sides = [open_weights(path, settings) for path in paths]
        other = evaluate_weights(sides[0], text, settings, sides[1])
        assert other.overall.loss.ours == pytest.approx(one.overall.loss.ours, abs=1e-6)
        assert other.overall.kl_mean == pytest.approx(one.overall.kl_mean, rel=1e-5)
        store_reference(sides[1], text, 8, settings, tmp_path / "spread.npz")
        found = evaluate_against_stored(sides[0], tmp_path / "spread.npz", settings)
        assert found.overall.top1_agreement == one.overall.top1_agreement


def test_a_stored_reference_is_read_strictly(pair: tuple[Weights, Weights], probe: HeldOutSet, tmp_path: Path) -> None:
    path = tmp_path / "reference.npz"
    store_reference(pair[1], text_for(pair[1], probe, None), 4, ONE, path)
    stored = read_stored(path)
    content = path.read_bytes()
    for broken in (content[:-50], b"", b"PK\x03\x04", content[:200] + bytes(200) + content[400:]):
        path.write_bytes(broken)
        with pytest.raises(EctypeError, match=r"reference\.npz"):
            read_stored(path)
    short = {name: values[:-1] for name, values in stored.by_token.items()}
    write_stored(path, type(stored)(**{**vars(stored), "by_token": short}))
    with pytest.raises(EctypeError, match="do not fit together"):
        read_stored(path)
    with pytest.raises(EctypeError, match=r"ending in \.npz"):
        store_reference(pair[1], text_for(pair[1], probe, None), 4, ONE, tmp_path / "reference.bin")


def test_the_command_compares_weights_and_stores_references(
    imported: Callable[[int], Path], probe: HeldOutSet, tmp_path: Path
) -> None:
    (tmp_path / "probe.yaml").write_text(json.dumps(probe.model_dump(mode="json", exclude_defaults=True)))
    ours, other, record = str(imported(640)), str(imported(400)), str(tmp_path / "r.npz")
    held_out = ["--held-out", f"probe={tmp_path / 'probe.yaml'}"]

    def run(*arguments: str, code: int = 0) -> dict:
        done = CliRunner().invoke(app, ["evaluate", *arguments, "--json"])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    alone = run(ours, *held_out)["evaluations"]["probe"]
    assert alone["inputs"]["reference"] is alone["overall"]["kl_mean"] is None
    beside = run(ours, *held_out, "--against", other)["evaluations"]["probe"]
    assert run(other, *held_out, "--store", record, "--top", "16") == {"stored": record, "tokens": 5 * 63}
    bounded = run(ours, "--against", record)["evaluations"][record]
    assert bounded["overall"]["kl_mean"] < beside["overall"]["kl_mean"] < bounded["overall"]["kl_upper_mean"]
    assert "top 16" in CliRunner().invoke(app, ["evaluate", ours, "--against", record]).stdout
    for characters in ("70", "200"):
        command = ["evaluate", ours, *held_out, "--against", other]
        told = CliRunner(env={"COLUMNS": characters}).invoke(app, command).stdout
        heads = ("domain", "loss", "perplexity", "bits/byte", "reference", "KL mean", "KL p99", "KL max", "top-1")
        assert all(head in told for head in heads), told
        assert "…" not in told
    for wrong in (["--against", record, *held_out], ["--against", other], ["--store", record], [], ["--top", "3"]):
        assert "error" in run(ours, *wrong, code=2)
