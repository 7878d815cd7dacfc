"""Learning rates against OLMo-core's own, in float64."""

import csv
import json

import pytest

from ectype.recipe.load import load_recipe
from ectype.recipe.spec import Schedule
from ectype.train.schedule import learning_rate

OFFICIAL = {
    "7B_pretrain1": {"kind": "cosine", "warmup_steps": 2000},
    "7B_pretrain2": {"kind": "half_cosine", "warmup_steps": 597046},
    "7B_midtrain": {"kind": "linear", "final_fraction": 0.0},
    "7B_longctx": {"kind": "linear", "warmup_steps": 200, "final_fraction": 0.0},
    "32B_midtrain": {"kind": "linear", "final_fraction": 0.0},
    "32B_longctx": {"kind": "linear", "warmup_steps": 200, "final_fraction": 0.0},
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_stages(shared, name):
    stored = json.loads((shared / "reference/olmocore_tiny/components/schedules.json").read_text())[name]
    schedule = Schedule(peak=stored["lr"], horizon_steps=stored["t_max"], **OFFICIAL[name])
    for step, rate in stored["points"].items():
        assert learning_rate(schedule, int(step)) == pytest.approx(float(rate), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(("recipe", "folder"), [("toy-calm", "olmocore_calm"), ("toy-hot", "olmocore_tiny")])
def test_every_step_of_the_reference_logs(shared, recipe, folder):
    schedule = load_recipe(recipe).schedule
    with open(shared / f"reference/{folder}/log.csv") as stream:
        for row in csv.DictReader(stream):
            assert learning_rate(schedule, int(row["step"])) == pytest.approx(float(row["lr"]), rel=1e-12)


def test_after_the_horizon_and_constant():
    cosine = Schedule(kind="cosine", peak=1.0, horizon_steps=10, final_fraction=0.1)
    assert [learning_rate(cosine, step) for step in (10, 11)] == [0.1, 0.1]
    constant = Schedule(kind="constant", peak=2.0, warmup_steps=4, horizon_steps=10)
    assert [learning_rate(constant, step) for step in (1, 4, 99)] == [0.5, 2.0, 2.0]
