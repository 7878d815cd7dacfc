"""YAML from a user ends in a value or in one clear error, wherever it is read."""

from pathlib import Path

import pytest

from ectype.data.mixture import load_mixture
from ectype.errors import EctypeError
from ectype.recipe.load import load_recipe, to_yaml
from ectype.recipe.yaml_text import parse_yaml

HOSTILE = {
    "an impossible date": "a: 2020-13-45",
    "a number of 5,000 digits": "a: " + "9" * 5000,
    "5,000 open brackets": "a: " + "[" * 5000,
    "a Python object": "a: !!python/object:os.system x",
    "a key that stands twice": "a: 1\nb: 2\na: 3",
    "a key that stands twice further down": "a: [{c: {d: 1, d: 1}}]",
    "an unhashable key": "? [1]\n: 2",
    "two documents": "a: 1\n---\na: 1",
    "a tab": "a:\n\t- b",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_value_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_yaml(text)


def test_bytes_that_are_no_text_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="invalid start byte"):
        parse_yaml(b"a: \xff\xfe\x80")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("a: {b: 1}\nc: {b: 2}", {"a": {"b": 1}, "c": {"b": 2}}), ("1: a\n'1': b", {1: "a", "1": "b"}),
        ("x: &x {b: 1}\ny: *x\nz: {<<: *x, b: 2}", {"x": {"b": 1}, "y": {"b": 1}, "z": {"b": 2}}),
    ],
)  # fmt: skip
def test_sound_text_is_its_value(text: str, value: object) -> None:
    assert parse_yaml(text) == value


def test_a_document_that_holds_itself_ends() -> None:
    value = parse_yaml("&a {name: *a}")
    assert value["name"] is value


def test_a_repeated_key_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match="key 'peak' stands twice in one mapping, again in line 3"):
        parse_yaml("schedule:\n  peak: 1.0e-3\n  peak: 3.0e-3\n")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_recipes_overrides_and_mixtures_refuse_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    value = text.removeprefix("a: ")
    for read in (load_recipe, lambda file: load_mixture(Path(file))):
        with pytest.raises(EctypeError, match=r"mine\.yaml"):
            read(str(path))
    with pytest.raises(EctypeError, match=r"override 'data\.order\.seed="):
        load_recipe("toy-calm", [f"data.order.seed={{{value}}}"])


def test_a_value_given_twice_in_a_recipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(load_recipe("toy-calm")) + "\nduration_steps: 700\n")
    with pytest.raises(EctypeError, match="key 'duration_steps' stands twice"):
        load_recipe(str(path))


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(EctypeError, match="null byte"):
        load_recipe("a\0.yaml")
