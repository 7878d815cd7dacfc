"""`ectype train` on a run that was begun: which inputs it takes where the command line names some of them."""

from pathlib import Path

import pytest

from ectype.artifacts import write_bytes_atomic
from ectype.cli.train import resolved_recipe
from ectype.recipe.load import load_placement, load_recipe, recipe_hash, to_yaml
from ectype.recipe.spec import Inputs, Recipe
from ectype.run.manifest import Environment, Manifest, write_manifest
from ectype.run.paths import RunFolder

STORED = Inputs(index="/data/index.json", weights="/data/step0", reference="package:demo/bundle", remap=("/a=/b",))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder that was begun with inputs other than those that toy-calm ships with."""
    folder = tmp_path / "run"
    recipe = load_recipe("toy-calm").model_copy(update={"inputs": STORED})
    environment = Environment(ectype="0", python="3", machine="m", system="s", cores=2, packages={})
    manifest = Manifest(
        recipe=recipe.name, recipe_hash=recipe_hash(recipe), earlier_recipe_hashes=(), index_fingerprint="0",
        perturbation=None, created="", environment=environment, placement=load_placement("cpu-one"), sessions=(),
    )  # fmt: skip
    write_bytes_atomic(RunFolder(folder).recipe, to_yaml(recipe).encode())
    write_manifest(folder, manifest)
    return folder


def _asked(run: Path, *overrides: str, name: str = "toy-calm", **given: str | None) -> Recipe:
    return resolved_recipe(name, run, list(overrides), {"keep": [], "reset": []}, [], None, given)


def test_inputs_that_were_not_named_are_those_that_the_run_stored(run: Path) -> None:
    assert _asked(run).inputs == STORED


def test_inputs_that_were_named_stand(run: Path) -> None:
    assert _asked(run, index="/other.json").inputs == STORED.model_copy(update={"index": "/other.json"})
    assert _asked(run, weights="/w", padded_rows=None).inputs.weights == "/w"
    assert _asked(run, "inputs.weights=null").inputs.weights is None
    assert _asked(run, "inputs={index: /x.json}").inputs == Inputs(index="/x.json")


def test_a_recipe_file_of_ones_own_names_what_it_says_and_no_more(run: Path, tmp_path: Path) -> None:
    own = load_recipe("toy-calm").model_copy(update={"inputs": Inputs(index="/own.json")})
    (tmp_path / "own.yaml").write_text(to_yaml(own))
    found = _asked(run, name=str(tmp_path / "own.yaml")).inputs
    assert found == STORED.model_copy(update={"index": "/own.json"})


def test_a_new_run_takes_the_inputs_of_the_recipe(tmp_path: Path) -> None:
    assert _asked(tmp_path / "new").inputs == load_recipe("toy-calm").inputs


def test_the_recipe_that_a_run_stores_resumes_it(run: Path) -> None:
    assert _asked(run, name=str(RunFolder(run).recipe)).inputs == STORED
