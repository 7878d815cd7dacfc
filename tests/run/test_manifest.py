"""What a run was made under can't be changed afterwards without being seen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ectype.errors import EctypeError
from ectype.recipe.load import load_recipe, recipe_hash, to_yaml
from ectype.run.manifest import Manifest, load_run_recipe, write_manifest


def _run(folder: Path, *changes: str) -> Path:
    (folder / "recipe.yaml").write_text(to_yaml(load_recipe("toy-calm", changes)))
    return folder


@pytest.mark.parametrize(
    "change",
    ["optimizer.epsilon=1e-5", "model.rope_theta=10000.0", "optimizer.decay_embedding=true", "loss.z_loss=0.0",
     "model.window_pattern=[63, 63, 63, null]", "duration_steps=1000", "data.order.seed=1"],
)  # fmt: skip
def test_a_recipe_that_was_changed_after_the_run_is_refused(
    tmp_path: Path, make_manifest: Callable[..., Manifest], change: str
) -> None:
    run = _run(tmp_path)
    write_manifest(run, make_manifest())
    assert load_run_recipe(run) == load_recipe("toy-calm")
    _run(tmp_path, change)
    with pytest.raises(EctypeError, match="it was changed since the run"):
        load_run_recipe(run)


def test_what_no_update_depends_on_may_change(tmp_path: Path, make_manifest: Callable[..., Manifest]) -> None:
    run = _run(tmp_path, "landmarks=[80]", "inputs.index=elsewhere.txt", "name=other")
    write_manifest(run, make_manifest())
    assert load_run_recipe(run).landmarks == (80,)
    assert load_run_recipe(run, ["schedule.peak=1e-3"]).schedule.peak == 1e-3


def test_an_earlier_recipe_of_the_run_stands_there_after_a_crash(
    tmp_path: Path, make_manifest: Callable[..., Manifest]
) -> None:
    now = recipe_hash(load_recipe("toy-calm", ["schedule.peak=1e-3"]))
    write_manifest(
        tmp_path, make_manifest(recipe_hash=now, earlier_recipe_hashes=(recipe_hash(load_recipe("toy-calm")),))
    )
    assert load_run_recipe(_run(tmp_path)) == load_recipe("toy-calm")
    assert load_run_recipe(_run(tmp_path, "schedule.peak=1e-3")).schedule.peak == 1e-3
