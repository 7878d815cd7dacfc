"""The one way from untrusted values to checked ones: whatever is wrong, one error names file, field and mend."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from ectype.errors import EctypeError
from ectype.recipe.parse import parse, read_record
from ectype.recipe.spec import Section


class Inner(Section):
    count: int


class Outer(Section):
    format: Literal[2] = 2
    name: str
    inner: Inner | None = None


SOUND: dict[str, Any] = {"format": 2, "name": "a", "inner": {"count": 1}}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1, 2], "holds no mapping but [1, 2]"),
        (None, "holds no mapping but None"),
        ({"error": {"found": "no ledger"}}, "is what a failed command printed: no ledger"),
        (SOUND | {"format": 1}, "has format 1"),
        ({"name": "a"}, "has no format version"),
        ({"format": 2}, "name is missing"),
        (SOUND | {"nme": "b"}, "unknown key 'nme' (did you mean 'name'?)"),
        (SOUND | {"inner": {"count": "many"}}, "inner.count: Input should be a valid integer"),
        (SOUND | {"inner": {"count": 1, "coutn": 2}}, "unknown key 'inner.coutn' (did you mean 'inner.count'?)"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, values: Any, found: str) -> None:
    path = tmp_path / "outer.json"
    path.write_text(json.dumps(values))
    with pytest.raises(EctypeError) as failure:
        read_record(path, Outer, "outer", "ectype x", "do x again")
    assert failure.value.found.startswith(f"outer {path}")
    assert found in failure.value.found
    assert failure.value.mend == "do x again"
    assert failure.value.expected


@pytest.mark.parametrize("text", ["", "{", '{"format": 2, "na'])
def test_a_torn_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "outer.json").write_text(text)
    with pytest.raises(EctypeError, match=r"outer\.json"):
        read_record(tmp_path / "outer.json", Outer, "outer", "ectype x", "do x again")


def test_sound_values_pass_and_many_faults_are_counted() -> None:
    assert parse(Outer, SOUND, "x") == Outer(name="a", inner=Inner(count=1))
    with pytest.raises(EctypeError, match="and 4 more"):
        parse(Outer, SOUND | {f"key{n}": n for n in range(10)}, "x")
