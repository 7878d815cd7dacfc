"""Held-out sets of a recipe: found from any folder, and no part of what is computed."""

from pathlib import Path

import pytest

from ectype.errors import EctypeError
from ectype.recipe.held_out_sets import check_names
from ectype.recipe.load import load_recipe, recipe_hash, to_yaml, with_inputs
from ectype.recipe.spec import HeldOutSet

SETS = "evaluation.sets={web: {documents: web, window_tokens: 32}, books: {tokens: {kjv: kjv.npy}, dtype: uint16}}"


def test_a_recipes_sets_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = with_inputs(load_recipe("toy-calm", [SETS]))
    assert stored.evaluation.sets["web"].documents == tmp_path / "web"
    assert stored.evaluation.sets["books"].tokens == {"kjv": tmp_path / "kjv.npy"}
    (tmp_path / "stored.yaml").write_text(to_yaml(stored))
    assert load_recipe(str(tmp_path / "stored.yaml")) == stored
    assert recipe_hash(stored) == recipe_hash(load_recipe("toy-calm"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{}", "either tokens or documents"),
        ("{tokens: a, documents: b}", "either tokens or documents"),
        ("{tokens: a, subdomains: true}", "are for documents"),
        ("{documents: a, dtype: uint16}", "are for tokens"),
        ("{documents: a, concatenate: true, subdomains: true}", "can't be told apart"),
        ("{tokens: a, window_tokens: 8, stride_tokens: 9}", "stride_tokens 9 is above window_tokens 8"),
        ("{tokens: a, prefix: end_of_text}", "a prefix needs rolling windows"),
        ("{tokens: a, windows: 3}", "unknown key"),
    ],
)
def test_a_set_that_contradicts_itself_is_refused(given: str, message: str) -> None:
    with pytest.raises(EctypeError, match=message):
        load_recipe("toy-calm", [f"evaluation.sets={{web: {given}}}"])


@pytest.mark.parametrize("name", ["", "../x", "a b", "held-out", "-x", "x\n"])
def test_a_name_that_can_be_no_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(EctypeError, match="held-out set named"):
        check_names({name: HeldOutSet(tokens=tmp_path)})


def test_two_names_that_make_one_file_are_refused(tmp_path: Path) -> None:
    """Records of `a/b` and `a.b` would lie in one file, each over the other."""
    one = HeldOutSet(tokens=tmp_path)
    assert set(check_names({"a/b": one, "a-b": one, "a_b": one})) == {"a/b", "a-b", "a_b"}
    with pytest.raises(EctypeError, match=r"held-out sets 'a/b' and 'a\.b'"):
        check_names({"a/b": one, "a.b": one})
