"""Recipes and placements from YAML: shipped by name or read from a path, overridden, checked, hashed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from ectype.artifacts import sha256_of_json
from ectype.errors import EctypeError
from ectype.recipe.held_out_sets import rooted
from ectype.recipe.parse import field_names, nearest, nearest_key, parse
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Evaluation, Inputs, Recipe
from ectype.recipe.yaml_text import parse_yaml, read_mapping

Spec = TypeVar("Spec", Recipe, Placement)
_SHIPPED = {"recipe": Path(__file__).parent / "recipes", "placement": Path(__file__).parent / "placements"}
_NOT_COMPUTED = ("name", "description", "landmarks", "inputs", "evaluation")
"""Recipe fields that no update depends on; they stay out of the hash."""
_NOT_INHERITED = ("name", "description", "landmarks", "inputs", "hand_over", "base")
"""Of a recipe's `base`: what each recipe says for itself."""


def shipped(kind: str) -> list[str]:
    """Names of the recipes or placements inside the package."""
    return sorted(path.stem for path in _SHIPPED[kind].glob("*.yaml"))


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe by shipped name or YAML path, then apply `section.key=value` overrides."""
    return _load(Recipe, "recipe", name_or_path, overrides)


def load_placement(name_or_path: str, overrides: Sequence[str] = ()) -> Placement:
    """Load a placement by shipped name or YAML path, then apply `section.key=value` overrides."""
    return _load(Placement, "placement", name_or_path, overrides)


def with_inputs(recipe: Recipe, *, remap: Sequence[str] = (), **given: str | None) -> Recipe:
    """The recipe with `given` inputs and further `remap` items, every plain path in it made absolute.

    A run folder stores its recipe, and must find its inputs again from any working directory.
    """
    inputs = recipe.inputs.model_dump(exclude={"remap"}) | given
    prefixes = parse_remap((*recipe.inputs.remap, *remap))
    resolved = {name: None if value is None else _absolute(value) for name, value in inputs.items()}
    items = tuple(f"{source}={_absolute(target)}" for source, target in prefixes.items())
    evaluation = Evaluation.model_validate(rooted(recipe.evaluation.model_dump(), Path.cwd()))
    return recipe.model_copy(update={"inputs": Inputs(**resolved, remap=items), "evaluation": evaluation})


def parse_remap(items: Sequence[str]) -> dict[str, str]:
    """Prefix to prefix, from `FROM=TO` items; of two with the same FROM the later one counts.

    Raises:
        EctypeError: an item of another form.
    """
    prefixes: dict[str, str] = {}
    for item in items:
        source, equals, target = item.partition("=")
        if not source or not equals or not target:
            raise EctypeError(f"remap {item!r}", "FROM=TO", "for example --remap gs://bucket=/mnt/bucket")
        prefixes[source] = target
    return prefixes


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 of what is computed: the resolved recipe less its name, text, landmarks, inputs and evaluation."""
    return sha256_of_json(_computed(recipe))


def recipe_differences(stored: Recipe, asked: Recipe) -> dict[str, tuple[Any, Any]]:
    """Dotted field -> (stored, asked), for each computed field in which two recipes differ."""
    left, right = (_flatten(_computed(recipe)) for recipe in (stored, asked))
    return {
        key: (left.get(key), right.get(key))
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    }


def to_yaml(spec: BaseModel) -> str:
    """The resolved specification as YAML that loads back equal."""
    return yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _computed(recipe: Recipe) -> dict[str, Any]:
    """What is computed. A stage that goes on from nothing has no word about it, so that its hash is that of old."""
    values = recipe.model_dump(mode="json", exclude=set(_NOT_COMPUTED))
    if recipe.hand_over is None:
        del values["hand_over"]
    return values


def _absolute(path: str) -> str:
    return path if path.startswith("package:") or "://" in path else str(Path(path).absolute())


def _load(spec: type[Spec], kind: str, name_or_path: str, overrides: Sequence[str]) -> Spec:
    path = _SHIPPED[kind] / f"{name_or_path}.yaml"
    if name_or_path not in shipped(kind):
        path = Path(name_or_path)
        if path.suffix not in (".yaml", ".yml"):
            other = "placement" if kind == "recipe" else "recipe"
            near = f", which is a {other}" if name_or_path in shipped(other) else nearest(name_or_path, shipped(kind))
            raise EctypeError(
                f"no {kind} named {name_or_path!r}{near}",
                f"one of {', '.join(shipped(kind))}, or a path ending in .yaml",
                f"list them with `ectype recipes{'' if kind == 'recipe' else ' --placements'}`",
            )  # fmt: skip
    values = _read(path, kind)
    if spec is Recipe and "base" in values:
        values = _on_base(values, f"{kind} {path}")
    for override in overrides:
        _override(spec, values, override)
    return parse(spec, values, f"{kind} {name_or_path}")


def _read(path: Path, kind: str) -> dict[str, Any]:
    return read_mapping(path, kind, "start from `ectype recipes show NAME`")


def _on_base(values: dict[str, Any], source: str) -> dict[str, Any]:
    """`values` over those of the shipped recipe that its key `base` names: keys of sections one by one, lists whole.

    A base has no base itself, so that any recipe can be read off two files.
    """
    own = {key: value for key, value in values.items() if key != "base"}
    name = values["base"]
    found = _read(_SHIPPED["recipe"] / f"{name}.yaml", "recipe") if name in shipped("recipe") else None
    if found is None or "base" in found:
        fault = "no shipped recipe" if found is None else "a recipe on a base of its own"
        raise EctypeError(
            f"{source}: base {name!r}, {fault}", "the name of a shipped recipe without a base",
            "see `ectype recipes`, or write all sections out",
        )  # fmt: skip
    return _merged({key: value for key, value in found.items() if key not in _NOT_INHERITED}, own)


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(under[key], over[key]) for key in under.keys() & over.keys() if _are_sections(under, over, key)
    }
    return under | over | both


def _are_sections(under: dict[str, Any], over: dict[str, Any], key: str) -> bool:
    return isinstance(under[key], dict) and isinstance(over[key], dict)


def _override(spec: type[BaseModel], values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise EctypeError(f"override {override!r}", "section.key=value", "for example --set schedule.peak=3e-4")
    valid = field_names(spec)
    if key not in valid:
        raise EctypeError(
            f"override of unknown key {key!r}{nearest_key(spec, key)}", "a key of the specification",
            "see `ectype recipes show NAME`",
        )  # fmt: skip
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        if node.get(parent) is None:
            node[parent] = {}
        node = node[parent]
        if not isinstance(node, dict):
            raise EctypeError(
                f"override {override!r}: {parent} is {node!r}",
                "a section with keys",
                "override the section's keys only",
            )
    try:
        node[last] = _scalar(text)
    except ValueError as error:
        shown = override if len(override) <= 200 else f"{override[:200]}..."
        raise EctypeError(f"override {shown!r}: the value is no YAML: {error}", "a YAML value", "quote it") from None


def _scalar(text: str) -> Any:
    """A YAML value; unlike YAML 1.1, `3e-4` is a number."""
    value = parse_yaml(text)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.")
    return flat
