"""The bundled run is the reference run, unchanged, and small enough to ship."""

import hashlib
import json
from pathlib import Path

import pytest

from ectype.artifacts import package_path
from ectype.recipe.load import load_recipe
from ectype.recipe.reference import load_reference, read_training_log

BUNDLE = package_path("package:demo/bundle")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_bundle_holds_at_most_25_megabytes() -> None:
    assert sum(path.stat().st_size for path in BUNDLE.rglob("*") if path.is_file()) <= 25_000_000


def test_the_reference_loads_and_its_log_covers_the_recipe() -> None:
    reference = load_reference("package:demo/bundle")
    assert reference.log is not None
    log = read_training_log(reference.log)
    assert log.steps.tolist() == list(range(1, load_recipe("toy-calm").duration_steps + 1))
    assert reference.dtype == "float32"


def test_the_recipe_names_only_files_that_are_there_and_the_landmarks_that_are_bundled() -> None:
    recipe = load_recipe("toy-calm")
    named = recipe.inputs.model_dump(exclude={"remap"}, exclude_none=True)
    assert {key: value for key, value in named.items() if not package_path(value).exists()} == {}
    assert list(recipe.landmarks) == list(load_reference("package:demo/bundle").landmarks)


@pytest.mark.parametrize("folder", ["hf", "padded_rows"])
def test_weights_are_those_that_olmo_core_wrote(shared: Path, folder: str) -> None:
    source = shared / "reference/olmocore_calm"
    for path in (BUNDLE / folder).rglob("*"):
        if path.is_file():
            assert _sha256(path) == _sha256(source / path.relative_to(BUNDLE)), path


def test_tokens_are_those_of_the_run_and_in_its_order(shared: Path) -> None:
    files = json.loads((shared / "reference/olmocore_tiny/tokens/manifest.json").read_text())["files"]
    shipped = [file for file in files if file["split"] in ("train", "heldout")]
    assert set((BUNDLE / "tokens").rglob("*.npy")) == {BUNDLE / file["path"] for file in shipped}
    for file in shipped:
        assert _sha256(BUNDLE / file["path"]) == file["sha256"], file["path"]
    listed = [line.split(",") for line in (BUNDLE / "tokens/manifest.txt").read_text().splitlines()]
    assert [["tokens/" + path, label] for label, path in listed] == [
        [file["path"], file["domain"]] for file in files if file["split"] == "train"
    ]
