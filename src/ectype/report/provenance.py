"""The report's last sections: where the run came from, what it ran on, and the hashes that identify its inputs."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import yaml

from ectype.recipe.load import recipe_hash, to_yaml
from ectype.report.markup import Cell, Column, Html, code, definitions, missing, section, table
from ectype.report.measures import Part
from ectype.report.records import RunRecords


def provenance_part(records: RunRecords) -> Part:
    """Hashes, reference, environment and sessions; the recipe in full."""
    title = "Provenance"
    lead = "What was computed, from what, on what. Equal hashes mean equal inputs."
    details = _folded("The resolved recipe", to_yaml(records.recipe))
    if records.run is None:
        environment = missing("run.json is not there, so nothing is known of the machine.")
    else:
        shown = {"created": records.run.get("created"), **_mapping(records.run.get("environment"))}
        environment = _titled("Environment", definitions(list(_flat(shown))))
        environment += _sessions(records.run.get("sessions"))
        if placement := _mapping(records.run.get("placement")):
            details += _folded("The placement", yaml.safe_dump(dict(placement), sort_keys=False))
    inputs = _titled("Inputs", definitions(_inputs(records)))
    return Part("provenance", "Provenance", section("provenance", title, lead, inputs, environment, details))


def _inputs(records: RunRecords) -> list[tuple[Cell, Cell]]:
    run, reference = records.run or {}, records.reference
    pairs: list[tuple[Cell, Cell]] = [
        ("Recipe", records.recipe.name),
        ("Recipe hash", code(recipe_hash(records.recipe))),
        ("Index fingerprint", code(run["index_fingerprint"]) if run.get("index_fingerprint") else None),
        ("Reference", f"{reference.name}: {reference.framework}" if reference else "none named"),
    ]
    if not records.evaluations:
        return pairs
    last = records.evaluations[max(records.evaluations)]
    hashes = {"Our weights": last.inputs.ours, "The reference's weights": last.inputs.reference}
    hashes |= {f"Held-out text, {name}": value for name, value in last.inputs.held_out.items()}
    if last.inputs.tokenizer:
        hashes["Tokenizer"] = last.inputs.tokenizer
    rows: list[tuple[Cell, Cell]] = [
        (f"{name}, SHA-256{f' at update {last.step:,}' if 'weights' in name else ''}", code(value))
        for name, value in hashes.items()
    ]
    return pairs + rows


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _folded(title: str, text: str) -> str:
    return f'<details class="card"><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>'


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[Cell, Cell]]:
    """Leaves of nested objects, named by their path in words."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _flat(value, f"{prefix} {key}".strip())
    elif values is not None:
        yield prefix.replace("_", " "), Html(f"<code>{escape(str(values))}</code>")


def _sessions(sessions: Any) -> str:
    if not isinstance(sessions, list) or not sessions or not all(isinstance(entry, Mapping) for entry in sessions):
        return ""
    keys = list(dict.fromkeys(key for entry in sessions for key, value in entry.items() if _is_plain(value)))
    columns = [Column("session"), *(Column(key.replace("_", " ")) for key in keys)]
    rows = [[str(place), *(_plain(entry.get(key)) for key in keys)] for place, entry in enumerate(sessions, start=1)]
    return table("Starts of the program", columns, rows)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _plain(value: Any) -> str | None:
    return None if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _titled(title: str, markup: str) -> str:
    return f"<h3>{escape(title)}</h3>{markup}"
