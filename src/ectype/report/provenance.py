"""The report's last sections: where the run came from, what it ran on, and the hashes that identify its inputs."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ectype.recipe.load import recipe_hash, to_yaml
from ectype.report.markup import Cell, Column, Html, Part, code, definitions, missing, section, table
from ectype.report.records import RunRecords
from ectype.run.manifest import Session


def provenance_part(records: RunRecords) -> Part:
    """Hashes, reference, environment and sessions; the recipe in full."""
    title = "Provenance"
    lead = (
        "What was computed, from what, on what. Equal hashes mean equal files; checkpoints of equal weights may differ "
        "as files."
    )
    details = _folded("The resolved recipe", to_yaml(records.recipe))
    if records.run is None:
        environment = missing("run.json is not there, so nothing is known of the machine.")
    else:
        shown = {"created": records.run.created, **records.run.environment.model_dump()}
        environment = _titled("Environment", definitions(list(_flat(shown))))
        environment += _sessions(records.run.sessions)
        details += _folded("The placement", to_yaml(records.run.placement))
    if records.verdict is not None:
        hashes = records.verdict.evidence | {name: file.sha256 for name, file in records.verdict.inputs.items()}
        evidence = "\n".join(f"{value}  {name}" for name, value in hashes.items())
        details += _folded("Files that the verdict rests on, SHA-256", evidence)
    inputs = _titled("Inputs", definitions(_inputs(records)))
    return Part("provenance", "Provenance", section("provenance", title, lead, inputs, environment, details))


def _inputs(records: RunRecords) -> list[tuple[Cell, Cell]]:
    run, reference = records.run, records.reference
    pairs: list[tuple[Cell, Cell]] = [
        ("Recipe", records.recipe.name),
        ("Recipe hash", code(recipe_hash(records.recipe))),
        ("Index fingerprint", code(run.index_fingerprint) if run else None),
        ("Reference", f"{reference.name}: {reference.framework}" if reference else "none named"),
    ]
    if not records.evaluations:
        return pairs
    last = records.evaluations[max(records.evaluations)]
    hashes = {"Our weights": last.inputs.ours, "The reference's weights": last.inputs.reference}
    hashes |= {f"Held-out text, {name}": value for name, value in last.inputs.held_out.items()}
    for name, evaluations in records.sets.items():
        further = evaluations[max(evaluations)].inputs.held_out
        hashes |= {f"Held-out text, {name}, {domain}": value for domain, value in further.items()}
    if last.inputs.reference_padded_rows:
        hashes["The reference's padded rows"] = last.inputs.reference_padded_rows
    if last.inputs.tokenizer:
        hashes["Tokenizer"] = last.inputs.tokenizer
    rows: list[tuple[Cell, Cell]] = [
        (f"{name}, SHA-256{f' at update {last.step:,}' if 'weights' in name or 'rows' in name else ''}", code(value))
        for name, value in hashes.items()
    ]
    return [*pairs, *rows, ("Evaluated by", f"Ectype {last.inputs.ectype}")]


def _folded(title: str, text: str) -> str:
    return f'<details class="card"><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>'


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[Cell, Cell]]:
    """Leaves of nested objects, named by their path in words."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _flat(value, f"{prefix} {key}".strip())
    elif values is not None:
        yield prefix.replace("_", " "), Html(f"<code>{escape(str(values))}</code>")


def _sessions(sessions: Sequence[Session]) -> str:
    if not sessions:
        return ""
    columns = [Column("session"), *(Column(name.replace("_", " ")) for name in Session.model_fields)]
    rows: list[list[Cell]] = [
        [str(place), *(f"{v:,}" if isinstance(v, int) else str(v) for v in session.model_dump().values())]
        for place, session in enumerate(sessions, start=1)
    ]
    return table("Starts of the program", columns, rows)


def _titled(title: str, markup: str) -> str:
    return f"<h3>{escape(title)}</h3>{markup}"
