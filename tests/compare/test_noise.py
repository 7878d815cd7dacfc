"""The noise record: what twins differ by, its signs, its compact form, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_evidence import DOMAINS, LANDMARKS, STEPS, evaluation, log, twins

from ectype.compare.noise import landmark_noise, measure_noise, read_noise, write_noise
from ectype.errors import EctypeError


def test_differences_are_twin_less_run() -> None:
    # In a twin's evaluation the run is `ours` and the twin is `reference`, so a positive shift is a better twin.
    found = landmark_noise([evaluation(50, shift=0.25, kl=0.5), evaluation(50, shift=-0.5)])
    assert found.held_out_loss == pytest.approx((-0.25, 0.5))
    assert found.held_out_loss_domains["code"] == pytest.approx((-0.25, 0.5))
    assert set(found.held_out_loss_domains) == set(DOMAINS)
    assert found.kl_mean[1] == 0.0
    run, twin = log(), log(shift=0.125)
    record = measure_noise("h", 1e-6, STEPS, run, [twin], {s: [evaluation(s)] for s in LANDMARKS})
    np.testing.assert_allclose(record.loss_differences()[0], 0.125)
    assert record.twins == 1


def test_steps_are_kept_to_four_digits() -> None:
    record = measure_noise("h", 1e-6, STEPS, log(), [log(noise=1e-6)], {})
    exact = log(noise=1e-6).loss - log().loss
    np.testing.assert_allclose(record.loss_differences()[0], exact, rtol=5.1e-4)
    assert len(json.dumps(record.loss)) < 12 * STEPS


def test_the_record_reads_back_equal(tmp_path: Path) -> None:
    record = twins(1e-6)
    write_noise(tmp_path / "noise.json", record)
    assert read_noise(tmp_path / "noise.json") == record
    (tmp_path / "noise.json").write_text('{"format": 1}')
    with pytest.raises(EctypeError, match="noise record"):
        read_noise(tmp_path / "noise.json")


def test_an_unfinished_twin_and_an_unevaluated_landmark_are_refused() -> None:
    with pytest.raises(EctypeError, match="stopped early"):
        measure_noise("h", 1e-6, STEPS, log(), [log(), log(steps=90)], {})
    with pytest.raises(EctypeError, match=r"landmarks \[50\]"):
        measure_noise("h", 1e-6, STEPS, log(), [log(), log()], {0: [evaluation(0)] * 2, 50: [evaluation(50)]})


def test_a_broken_twin_is_recorded_as_such() -> None:
    twin = log()
    twin.loss[3] = np.nan
    record = measure_noise("h", 1e-6, STEPS, log(), [replace(twin, grad_norm=None)], {})
    assert record.loss[0][3] is None
    assert np.isnan(record.loss_differences()[0][3])
    assert record.grad_norm == ()
