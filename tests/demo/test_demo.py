"""The demo's walk from end to end, on the first updates of the bundled run."""

import json
import re

import numpy as np
import pytest

from ectype.compare.verdict import UNDECIDED
from ectype.demo.run import Demo, run_demo
from ectype.recipe.load import load_recipe
from ectype.recipe.reference import load_reference, read_training_log
from ectype.run.metrics import read_metrics

UPDATES = 6
RECIPE = load_recipe("toy-calm", [f"duration_steps={UPDATES}", "landmarks=[0]"])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, list[str]]:
    """A finished demo of a few updates, and the lines it said."""
    lines: list[str] = []
    return run_demo(tmp_path_factory.mktemp("demo"), recipe=RECIPE, say=lines.append), lines


def test_every_stage_says_what_it_did(demo: tuple[Demo, list[str]]) -> None:
    said = [re.sub(r"^\s*[\d.]+ s  ", "", line) for line in demo[1]]
    assert said == [
        "imported step-0 weights of olmocore-calm (OLMo-core 3.0.0, PyTorch 2.13.0, CPU, float32)",
        "indexed 4,172 windows of 256 tokens",
        "plan of 6 updates: every window exactly once per pass",
        "trained 6 updates",
        "evaluated 1 landmarks on held-out text",
        "audited what was read: every window exactly once per pass",
        "compared with the reference and wrote the report",
    ]


def test_it_follows_the_reference_and_yet_does_not_claim_too_much(demo: tuple[Demo, list[str]]) -> None:
    log = load_reference("package:demo/bundle").log
    assert log is not None
    ours, reference = read_metrics(demo[0].run_dir), read_training_log(log)
    np.testing.assert_allclose(ours.loss, reference.loss[:UPDATES], rtol=0, atol=1e-5)
    assert demo[0].verdict.answer == UNDECIDED, "nothing after step 0 was evaluated"


def test_the_report_holds_the_audit_and_the_verdict(demo: tuple[Demo, list[str]]) -> None:
    page = demo[0].report.read_text(encoding="utf-8")
    assert "Not enough evidence" in page
    assert "every window of these updates was read exactly once per pass" in page
    assert json.loads((demo[0].run_dir / "audit.json").read_text())["clean"] is True


def test_called_again_it_goes_on_and_trains_nothing_twice(demo: tuple[Demo, list[str]]) -> None:
    before = (demo[0].run_dir / "metrics.jsonl").read_bytes()
    again = run_demo(demo[0].run_dir.parent, recipe=RECIPE)
    assert (demo[0].run_dir / "metrics.jsonl").read_bytes() == before
    assert again.verdict == demo[0].verdict
