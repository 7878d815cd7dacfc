"""`ectype overlay` on a run folder and an export of W&B."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ectype.artifacts import package_path
from ectype.cli.main import app
from ectype.recipe.load import load_recipe, to_yaml
from ectype.recipe.reference import Log, read_training_log

STEPS = 640


def test_a_run_is_laid_over_an_export(tmp_path: Path) -> None:
    """From step 400 on the run lies 0.05 below, behind noise of 0.01 a step."""
    log = read_training_log(Log(path=package_path("package:demo/bundle/log.csv"), loss="ce_loss"))
    shift = np.random.default_rng(0).normal(0, 0.01, STEPS) - 0.05 * (log.steps > 400)
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(to_yaml(load_recipe("toy-calm")))
    names = ("z_loss", "grad_norm", "learning_rate", "loss_tokens", "tokens_seen", "step_seconds")
    rows = [
        json.dumps({"step": int(step), "loss": float(loss), "skipped": False, **dict.fromkeys(names, 1)})
        for step, loss in zip(log.steps, log.loss + shift, strict=True)
    ]
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    export = tmp_path / "wandb.csv"
    with export.open("w", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        column = "calm - train/CE loss"
        writer.writerow(["Step", column, f"{column}__MIN", f"{column}__MAX"])
        writer.writerows([step, loss, loss, loss] for step, loss in zip(log.steps, log.loss, strict=True))
    curves = tmp_path / "curves.csv"
    done = CliRunner().invoke(app, ["overlay", str(run), str(export), "--out", str(curves), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["steps_compared"], found["aggregated_rows"], found["smoothing_steps"]) == (STEPS, 0, 20)
    assert found["mean_last_quarter"] == pytest.approx(shift[-160:].mean(), rel=1e-6)
    assert 400 < found["first_band_departure_step"] < 420
    # Without an evaluation of held-out text, nobody knows what a lower loss means.
    assert found["warning"] is None
    with curves.open() as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == STEPS
    assert float(table[-1]["smoothed_difference"]) == pytest.approx(shift[-20:].mean(), rel=1e-4)
    assert table[0]["band"] == ""
    shown = CliRunner().invoke(app, ["overlay", str(run), str(export)])
    said = " ".join(shown.stdout.split())
    means = np.convolve(shift, np.ones(20) / 20, "valid")
    worst = int(np.abs(means).argmax())
    assert f"the largest difference is {means[worst]:+.3g} nats, of the steps up to {worst + 20}." in said
    assert f"More than both: first at step {found['first_band_departure_step']}." in said
    assert f"The mean of the last quarter, 160 steps, differs by {shift[-160:].mean():+.3g} nats" in said
    refused = CliRunner().invoke(app, ["overlay", str(run), str(export), "--loss", "nothing"])
    assert refused.exit_code == 2
    assert "--loss COLUMN" in refused.stderr
    assert "in the reference" not in refused.stderr
    bundled = package_path("package:demo/bundle/log.csv")
    (tmp_path / "log.csv").write_bytes(bundled.read_bytes())
    for path in (bundled, tmp_path / "log.csv"):
        by_reference = CliRunner().invoke(app, ["overlay", str(run), str(path), "--json"])
        assert by_reference.exit_code == 0, by_reference.output
        assert json.loads(by_reference.stdout)["mean_last_quarter"] == pytest.approx(found["mean_last_quarter"])


def test_the_curves_take_the_place_of_no_record(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log.csv"
    run.mkdir()
    (run / "recipe.yaml").write_text(to_yaml(load_recipe("toy-calm")))
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
    log.write_text("step,loss\n1,2.0\n")
    before = {path: path.read_bytes() for path in (log, run / "metrics.jsonl")}
    for out in before:
        done = CliRunner().invoke(app, ["overlay", str(run), str(log), "--loss", "loss", "--out", str(out)])
        assert done.exit_code == 2, done.output
    assert {path: path.read_bytes() for path in before} == before
