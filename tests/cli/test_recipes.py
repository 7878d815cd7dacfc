"""`ectype recipes`, and how bad input ends: exit 2, the nearest name, no traceback."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ectype.cli.main import app
from ectype.recipe.load import load_recipe, recipe_hash, shipped


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def _assert_bad_input(result: Result, *fragments: str) -> None:
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    for fragment in fragments:
        assert fragment in result.output
    for part in ("error: ", "expected: ", "to mend: "):
        assert part in result.stderr


def test_lists_what_ships() -> None:
    listed = json.loads(_run("recipes", "--json").stdout)["recipes"]
    assert sorted(listed) == shipped("recipe")
    assert all(listed.values())
    placements = json.loads(_run("recipes", "--placements", "--json").stdout)["placements"]
    assert sorted(placements) == shipped("placement")
    for name in shipped("recipe"):
        assert name in _run("recipes").stdout


def test_shows_the_resolved_recipe_with_its_hash() -> None:
    shown = json.loads(_run("recipes", "show", "toy-calm", "--json").stdout)
    assert shown["hash"] == recipe_hash(load_recipe("toy-calm"))
    assert shown["resolved"]["optimizer"]["beta2"] == 0.95
    assert f"# hash: {shown['hash']}" in _run("recipes", "show", "toy-calm").stdout


def test_what_is_shown_loads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(_run("recipes", "show", "toy-calm", "--set", "schedule.peak=1e-3").stdout)
    assert load_recipe(str(path)) == load_recipe("toy-calm", ["schedule.peak=1e-3"])


def test_overrides_reach_the_recipe() -> None:
    shown = json.loads(_run("recipes", "show", "toy-calm", "--set", "schedule.peak=3e-4", "--json").stdout)
    assert shown["resolved"]["schedule"]["peak"] == 3e-4
    assert shown["hash"] != recipe_hash(load_recipe("toy-calm"))


def test_an_unknown_recipe_names_the_nearest() -> None:
    _assert_bad_input(_run("recipes", "show", "toy-clam"), "no recipe named 'toy-clam'", "did you mean 'toy-calm'?")


def test_a_placement_in_a_recipes_stead_is_named_as_one() -> None:
    _assert_bad_input(_run("recipes", "show", "cpu"), "'cpu', which is a placement")
    _assert_bad_input(_run("recipes", "show", "toy-calm", "--placement"), "'toy-calm', which is a recipe")


def test_a_shorter_duration_says_what_to_do_with_the_landmarks() -> None:
    result = _run("recipes", "show", "toy-calm", "--set", "duration_steps=20")
    _assert_bad_input(result, "landmarks [80, 240, 400, 640]", "--until")


@pytest.mark.parametrize(
    ("override", "nearest"),
    [("schedule.peek=1e-3", "schedule.peak"), ("optimizer.beta3=0.9", "optimizer.beta"), ("sead=1", "seed")],
)
def test_an_unknown_key_names_the_nearest(override: str, nearest: str) -> None:
    _assert_bad_input(_run("recipes", "show", "toy-calm", "--set", override), "did you mean '", nearest)


@pytest.mark.parametrize("override", ["schedule.peak", "=3", "schedule.peak=-1", "schedule.peak=fast", "model=3"])
def test_a_bad_override_is_refused(override: str) -> None:
    _assert_bad_input(_run("recipes", "show", "toy-calm", "--set", override))


def test_an_unknown_key_in_a_file_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(_run("recipes", "show", "toy-calm").stdout.replace("weight_decay:", "weight_decey:"))
    _assert_bad_input(_run("recipes", "show", str(path)), "unknown key 'optimizer.weight_decey'", "weight_decay")


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "\xff\xfe"])
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text.encode("latin-1"))
    _assert_bad_input(_run("recipes", "show", str(path)), "mine.yaml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    _assert_bad_input(_run("recipes", "show", str(tmp_path / "none.yaml")), "none.yaml")


def test_errors_are_json_when_asked() -> None:
    result = _run("recipes", "show", "toy-clam", "--json")
    assert result.exit_code == 2
    assert set(json.loads(result.stdout)["error"]) == {"found", "expected", "mend"}
