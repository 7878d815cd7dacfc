"""From untrusted values to a checked specification or record, or one error that names the file and its fields."""

import difflib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ectype.artifacts import read_json
from ectype.errors import EctypeError, first_of

Spec = TypeVar("Spec", bound=BaseModel)
_SHOWN_FAULTS = 6


def parse(
    spec: type[Spec],
    values: Any,
    source: str,
    *,
    expected: str = "fields of the documented names and types",
    mend: str = "correct the fields named above",
) -> Spec:
    """Check `values` as a `spec`.

    Args:
        source: names the values in errors: their role and their file.
        expected: what would have been right.
        mend: the action that gets the user past it.

    Raises:
        EctypeError: another format version, or the first few fields that do not fit, each by its dotted name.
    """
    _refuse_other_kinds(spec, values, source, mend)
    try:
        # As JSON, in which a list may stand for a tuple but neither `true` for 1 nor "5" for 5.
        return spec.model_validate_json(json.dumps(values, default=_plain), strict=True)
    except ValidationError as error:
        lines = [_explain(spec, item) for item in error.errors()]
        raise EctypeError(f"{source}: {first_of(lines, _SHOWN_FAULTS)}", expected, mend) from None


def read_record(path: Path, spec: type[Spec], what: str, writer: str, mend: str) -> Spec:
    """Read a JSON file strictly as a `spec`.

    Args:
        what: the file's role, for errors.
        writer: the command that writes such files.
        mend: the action that replaces the file.

    Raises:
        EctypeError: no such file, no JSON, or no record of this version.
    """
    expected = f"a record that `{writer}` wrote"
    try:
        values = read_json(path, what)
    except EctypeError as error:
        if not path.exists():
            raise
        raise EctypeError(error.found, expected, mend) from None  # A torn record: nobody writes it by hand.
    return parse(spec, values, f"{what} {path}", expected=expected, mend=mend)


def field_names(spec: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all fields, those of sections included."""
    names = []
    for name, info in spec.model_fields.items():
        names.append(prefix + name)
        for section in _sections(info.annotation):
            names += field_names(section, f"{prefix}{name}.")
    return names


def nearest_key(spec: type[BaseModel], key: str) -> str:
    """` (did you mean 'x'?)` for the field most like `key`; nothing where none is like it."""
    return nearest(key, field_names(spec))


def nearest(word: str, choices: Sequence[str]) -> str:
    """` (did you mean 'x'?)`, matching the whole dotted key first and its last part second."""
    found = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if not found:
        last = word.rsplit(".", 1)[-1]
        found = [c for c in choices if difflib.get_close_matches(last, [c.rsplit(".", 1)[-1]], n=1, cutoff=0.75)][:1]
    return f" (did you mean {found[0]!r}?)" if found else ""


def _refuse_other_kinds(spec: type[BaseModel], values: Any, source: str, mend: str) -> None:
    """Refuse what is no mapping, what a failed command printed, and a record of another format version."""
    if not isinstance(values, dict):
        shown = repr(values) if len(repr(values)) <= 40 else f"{repr(values)[:40]}..."
        raise EctypeError(f"{source} holds no mapping but {shown}", "names and values", mend)
    failed = values.get("error")
    if isinstance(failed, dict) and "error" not in spec.model_fields:
        raise EctypeError(f"{source} is what a failed command printed: {failed.get('found')}", "its result", mend)
    if "format" in spec.model_fields:
        known = typing.get_args(spec.model_fields["format"].annotation)
        if values.get("format") not in known:
            found = f"format {values['format']!r}" if "format" in values else "no format version"
            raise EctypeError(f"{source} has {found}", f"format {', '.join(map(str, known))}", mend)


def _plain(value: Any) -> Any:
    """A value that JSON does not know: a section as its fields, else its text, which no field takes for a number."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def _explain(spec: type[BaseModel], item: Mapping[str, Any]) -> str:
    location = [str(part) for part in item["loc"]]
    field = ".".join(location)
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {field!r}{nearest_key(spec, field)}"
    if item["type"] in ("missing", "missing_argument"):
        return f"{field} is missing"
    given = item.get("input")
    shown = "" if isinstance(given, (dict, list)) else f" (found {given!r})"
    return f"{field or spec.__name__.lower()}: {item['msg'].removeprefix('Value error, ')}{shown}"


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [section for part in typing.get_args(annotation) for section in _sections(part)]
    return []
