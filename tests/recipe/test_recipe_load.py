"""Recipes and placements: load, round trip, hash what is computed and nothing else."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ectype.errors import EctypeError
from ectype.recipe.load import (
    load_placement,
    load_recipe,
    recipe_differences,
    recipe_hash,
    shipped,
    to_yaml,
)
from ectype.recipe.parse import parse
from ectype.recipe.spec import Recipe

BASE = load_recipe("toy-calm")
NOT_COMPUTED = {"name", "description", "landmarks", "inputs", "evaluation"}

# A second legal value for every computed field of `toy-calm`. A new field without an entry fails the test below.
OTHER_VALUES: dict[str, Any] = {
    "model.d_model": 256,
    "model.n_layers": 8,
    "model.n_heads": 8,
    "model.n_kv_heads": 2,
    "model.head_dim": 64,
    "model.d_ffn": 352,
    "model.vocab_size": 999,
    "model.trained_rows": 1025,
    "model.window_pattern": [32, None],
    "model.rope_theta": 1e4,
    "model.yarn": {"factor": 8.0, "original_length_tokens": 64},
    "model.norm_eps": 1e-5,
    "model.norm_placement": "before",
    "model.qk_norm": "head",
    "model.attention_bias": True,
    "model.tied_head": True,
    "model.init_std": 0.01,
    "model.init_cut": 2.0,
    "model.init_seed": 1,
    "data.sequence_length_tokens": 128,
    "data.global_batch_windows": 16,
    "data.eos_id": 2,
    "data.pad_id": 3,
    "data.order.kind": "stateless",
    "data.order.seed": 1,
    "data.order.max_target_length_tokens": 512,
    "data.repetition_filter.max_period": 12,
    "data.repetition_filter.min_period": 2,
    "data.repetition_filter.max_count": 31,
    "data.document_masks": True,
    "data.packing": {},
    "loss.z_loss": 0.0,
    "loss.rejected_windows_count": "none",
    "optimizer.beta1": 0.8,
    "optimizer.beta2": 0.99,
    "optimizer.epsilon": 1e-5,
    "optimizer.weight_decay": 0.0,
    "optimizer.decay_embedding": True,
    "optimizer.clip_norm": None,
    "optimizer.skip_step.window_steps": 64,
    "optimizer.skip_step.sigma": 5.0,
    "optimizer.count_starts_at": 0,
    "optimizer.step_increment_bugfix": False,
    "schedule.kind": "linear",
    "schedule.peak": 1e-3,
    "schedule.warmup_steps": 10,
    "schedule.horizon_steps": "epoch",
    "schedule.final_fraction": 0.0,
    "numerics.parameters": "bfloat16",
    "numerics.compute": "bfloat16",
    "numerics.gradient_reduction": "bfloat16",
    "numerics.moments": "bfloat16",
    "hand_over": {},
    "duration_steps": 641,
}
ONE_LEGAL_VALUE = {"optimizer.kind"}


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _with(key: str, value: Any) -> Recipe:
    values = BASE.model_dump(mode="json")
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        node = node[parent]
    node[last] = value
    return parse(Recipe, values, "test")


COMPUTED = [key for key in _leaves(BASE.model_dump(mode="json")) if key.split(".")[0] not in NOT_COMPUTED]
HAND_OVER_VALUES: dict[str, Any] = {
    "hand_over.source_step": 3,
    "hand_over.moments": "reset",
    "hand_over.adam_count": "reset",
    "hand_over.schedule": "keep",
    "hand_over.data_position": "keep",
    "hand_over.skip_history": "keep",
}


def test_every_computed_field_is_tried() -> None:
    assert set(COMPUTED) == OTHER_VALUES.keys() | ONE_LEGAL_VALUE


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_the_hash_changes_with_every_computed_field(key: str) -> None:
    other = _with(key, OTHER_VALUES[key])
    assert recipe_hash(other) != recipe_hash(BASE)
    assert any(found == key or found.startswith(f"{key}.") for found in recipe_differences(BASE, other))


@pytest.mark.parametrize("key", HAND_OVER_VALUES)
def test_the_hash_changes_with_every_field_of_the_hand_over(key: str) -> None:
    stage = _with("hand_over", {})
    assert stage.hand_over is not None
    assert {f"hand_over.{name}" for name in type(stage.hand_over).model_fields} == HAND_OVER_VALUES.keys()
    other = load_recipe("toy-calm", [f"{key}={HAND_OVER_VALUES[key]}"])
    assert recipe_hash(other) != recipe_hash(stage)
    assert list(recipe_differences(stage, other)) == [key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "other"),
        ("description", "other"),
        ("landmarks", [640]),
        ("inputs.index", "elsewhere/manifest.txt"),
        ("inputs.weights", None),
        ("inputs.padded_rows", None),
        ("inputs.source", "elsewhere/run"),
        ("inputs.reference", None),
        ("evaluation.bootstrap_samples", 3),
    ],
)
def test_the_hash_does_not_change_with_names_paths_or_what_is_only_looked_at(key: str, value: Any) -> None:
    other = _with(key, value)
    assert recipe_hash(other) == recipe_hash(BASE)
    assert recipe_differences(BASE, other) == {}


@pytest.mark.parametrize("name", shipped("recipe"))
def test_recipes_come_back_equal_from_yaml(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(recipe), encoding="utf-8")
    assert load_recipe(str(path)) == recipe
    assert recipe_hash(load_recipe(str(path))) == recipe_hash(recipe)


def _file(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_recipe_on_a_base_says_only_what_differs(tmp_path: Path) -> None:
    text = "name: mine\nbase: toy-calm\nschedule: {peak: 1.0e-3}\nmodel: {window_pattern: [32, null]}\n"
    mine = load_recipe(_file(tmp_path, text), ["schedule.warmup_steps=7"])
    expected = {
        "schedule.peak": (6e-4, 1e-3), "schedule.warmup_steps": (50, 7),
        "model.window_pattern": ([64, 64, 64, None], [32, None]),
    }  # fmt: skip
    assert recipe_differences(BASE, mine) == expected
    assert (mine.description, mine.landmarks, mine.inputs.index) == ("", (), None)


def test_a_recipe_on_a_base_is_the_recipe_written_out(tmp_path: Path) -> None:
    """What is hashed, shown and stored in a run is resolved: nothing is left of the base."""
    mine = load_recipe(_file(tmp_path, "name: mine\nbase: toy-calm\nloss: {z_loss: 0.0}\n"))
    whole = load_recipe(_file(tmp_path, to_yaml(mine)))
    assert "base" not in to_yaml(mine)
    assert whole == mine
    assert recipe_hash(mine) == recipe_hash(load_recipe("toy-calm", ["loss.z_loss=0.0"]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: toy-clam", "no shipped recipe"),
        ("base: toy-hot", "on a base of its own"),
        ("base: [toy-calm]", "no shipped recipe"),
        ("base: ../../secrets", "no shipped recipe"),
        ("base: toy-calm\nschedule: {peek: 1.0}", "unknown key 'schedule.peek'"),
        ("base: toy-calm", "name is missing"),
    ],
)
def test_a_bad_base_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(EctypeError, match=said):
        load_recipe(_file(tmp_path, text))


@pytest.mark.parametrize("axis", ["data", "fsdp"])
@pytest.mark.parametrize("size", [0, -2])
def test_a_mesh_axis_of_no_devices_is_refused(axis: str, size: int) -> None:
    with pytest.raises(EctypeError, match=f"mesh.{axis}"):
        load_placement("cpu", [f"mesh.{axis}={size}"])


@pytest.mark.parametrize("name", shipped("placement"))
def test_placements_come_back_equal_from_yaml(name: str, tmp_path: Path) -> None:
    path = tmp_path / "placement.yaml"
    path.write_text(to_yaml(load_placement(name)), encoding="utf-8")
    assert load_placement(str(path)) == load_placement(name)


@pytest.mark.parametrize("name", [*shipped("recipe"), *shipped("placement")])
def test_shipped_names_are_file_names_and_described(name: str) -> None:
    spec = load_recipe(name) if name in shipped("recipe") else load_placement(name)
    assert spec.name == name
    assert spec.description


def test_the_hash_is_the_same_in_another_process() -> None:
    code = "from ectype.recipe.load import *; print(recipe_hash(load_recipe('toy-calm')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == recipe_hash(BASE)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["schedule.peak=3e-4"], {"schedule.peak": (6e-4, 3e-4)}),
        (["optimizer.clip_norm=null"], {"optimizer.clip_norm": (1.0, None)}),
        (["duration_steps=10", "duration_steps=20", "landmarks=[]"], {"duration_steps": (640, 20)}),
        (["model.window_pattern=[64, null]"], {"model.window_pattern": ([64, 64, 64, None], [64, None])}),
        (
            ["model.yarn.factor=8", "model.yarn.original_length_tokens=64"],
            {"model.yarn.factor": (None, 8.0), "model.yarn.original_length_tokens": (None, 64)},
        ),
    ],
)
def test_overrides_change_what_they_name(overrides: list[str], expected: dict[str, Any]) -> None:
    differences = recipe_differences(BASE, load_recipe("toy-calm", overrides))
    assert expected.items() <= differences.items()


@pytest.mark.parametrize("name", shipped("recipe"))
def test_equal_recipes_have_one_python_hash(name: str) -> None:
    """The compiled step is kept by recipe, whatever its sections hold."""
    assert hash(load_recipe(name)) == hash(load_recipe(name))


def test_a_recipe_cannot_be_changed_in_place() -> None:
    with pytest.raises(Exception, match="frozen"):
        BASE.duration_steps = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("landmarks", [641], "beyond duration_steps"),
        ("data.eos_id", 1000, "not below model.vocab_size"),
        ("model.n_kv_heads", 3, "not a multiple"),
        ("model.head_dim", 31, "odd"),
        ("model.trained_rows", 999, "below vocab_size"),
        ("model.window_pattern", [], "empty"),
        ("schedule.peak", float("nan"), "schedule.peak"),
        ("schedule.peak", float("inf"), "schedule.peak"),
        ("duration_steps", 0, "duration_steps"),
        ("duration_steps", True, "duration_steps"),
        ("duration_steps", "640", "duration_steps"),
        ("duration_steps", 2**31, "duration_steps"),
        ("schedule.peak", True, "schedule.peak"),
        ("schedule.peak", "1e-3", "schedule.peak"),
        ("model.tied_head", "yes", "model.tied_head"),
        ("model.tied_head", 1, "model.tied_head"),
        ("model.init_seed", -1, "model.init_seed"),
        ("model.init_seed", 2**63, "model.init_seed"),
        ("data.order.seed", 2**63, "data.order.seed"),
        ("data.repetition_filter", {"min_period": 14}, "above max_period"),
    ],
)
def test_impossible_recipes_are_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises(EctypeError, match=said):
        _with(key, value)
