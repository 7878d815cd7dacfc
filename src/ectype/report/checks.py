"""The report's sections on what was checked beside the measures: data coverage and parity. Records in, markup out."""

from collections.abc import Sequence
from html import escape

from ectype.data import audit_record
from ectype.data.audit import Fault
from ectype.data.audit_record import AuditRecord, EpochRecord
from ectype.report import figures
from ectype.report.markup import (
    Cell,
    Column,
    Html,
    Part,
    bound,
    chip,
    definitions,
    missing,
    number,
    percent,
    section,
    table,
)
from ectype.report.markup import figure as plot
from ectype.weights import parity_record
from ectype.weights.parity_record import ParityRecord

_FAULTS_LISTED = 20
_SHARES = {
    "read once": "read_once", "read more than once": "read_twice", "missed": "missed",
    "not reached": "unread_not_reached", "fill no batch": "unread_dropped_tail",
}  # fmt: skip


def coverage_part(audit: AuditRecord | None, done: int | None = None, fingerprint: str | None = None) -> Part:
    """How often the run read the windows of each pass over the corpus, from its ledger.

    Args:
        done: updates that the run has done; an audit of fewer or more is told to be out of date. None: not known.
        fingerprint: of the index that the run reads; likewise.
    """
    title = "Data coverage"
    lead = "What the run read, proven from its record of consumed windows. Repeated data looks like a better loss."
    if audit is None:
        none = missing("The run's record of consumed windows was not audited.", audit_record.COMMAND)
        return Part("coverage", "Coverage", section("coverage", title, lead, none))
    said = (
        chip("good", "every window of these updates was read exactly once per pass")
        if audit.clean
        else chip("bad", "not every window was read exactly once per pass")
    )
    if done not in (None, audit.steps) or fingerprint not in (None, audit.fingerprint):
        of_now = f"{done:,} updates" if done not in (None, audit.steps) else "another index"
        said = chip("open", f"out of date: {audit.steps:,} updates were audited, and the run is of {of_now}")
    epochs = [(f"pass {epoch.epoch}", _shares(epoch)) for epoch in audit.epochs]
    kinds = list(_SHARES)
    drawn = figures.coverage(
        [name for name, _ in epochs], {kind: [found[kind] for _, found in epochs] for kind in kinds}
    )
    numbers = table(
        "Windows by how often they were read",
        [Column("pass"), Column("windows", "number"), *(Column(kind, "number") for kind in kinds)],
        [[name, sum(found.values()), *found.values()] for name, found in epochs],
    )
    place = plot("coverage", "Windows of each pass", f"Over {audit.steps:,} updates, by how often they were read.")
    notes = "; ".join(audit.notes)
    fine = f'<p class="fine">{escape(notes)}.</p>' if notes else ""
    body = (f"<p>{said.text}</p>", place, numbers, _faults(audit.faults), fine)
    return Part("coverage", "Coverage", section("coverage", title, lead, *body), {"coverage": drawn})


def _shares(epoch: EpochRecord) -> dict[str, int]:
    """Windows of a pass by what became of them; the kinds add up to all windows."""
    return {kind: getattr(epoch, field) for kind, field in _SHARES.items()}


def _faults(faults: Sequence[Fault]) -> str:
    if not faults:
        return ""
    columns = [Column("what was read wrongly"), Column("updates"), Column("hosts"), Column("some windows")]
    rows: list[list[Cell]] = [
        [
            fault.what,
            f"{fault.first_step:,} to {fault.last_step:,}",
            ", ".join(map(str, fault.hosts)) or "unknown",
            ", ".join(map(str, fault.windows)) or None,
        ]
        for fault in faults[:_FAULTS_LISTED]
    ]
    more = len(faults) - len(rows)
    rest = f'<p class="fine">{more:,} more are in audit.json.</p>' if more > 0 else ""
    return table("Faults", columns, rows) + rest


def parity_part(parity: ParityRecord | None) -> Part:
    """Logits of a checkpoint beside those of `transformers` on the same weights."""
    title = "Parity with transformers"
    lead = "Our logits beside those that Hugging Face transformers computes from the same weights."
    if parity is None:
        none = missing(
            "Parity was not measured: it needs torch, which the core install leaves out.", parity_record.COMMAND
        )
        return Part("parity", "Parity", section("parity", title, lead, none))
    said = chip("good", "the same function") if parity.same else chip("bad", "not the same function")
    versions = ", ".join(f"{name} {version}" for name, version in parity.versions.items())
    limits = parity.tolerances
    exact = parity.dtype == "float32"
    pairs: list[tuple[Cell, Cell]] = [
        ("Compared", f"{parity.length_tokens:,} positions, in {parity.dtype}, against {versions}"),
        (
            "Largest logit difference",
            _with_limit(parity.logit_difference_max, parity.logit_difference_limit, exact),
        ),
        ("Mean logit difference", Html(number(parity.logit_difference_mean))),
        ("KL, mean", Html(f"{number(parity.kl_mean)} nats")),
        ("KL, 99th percentile", Html(f"{number(parity.kl_p99)} nats")),
        ("KL, largest", _with_limit(parity.kl_max, limits.kl_max, exact)),
        ("Top-1 agreement", Html(percent(parity.top1_agreement, 3))),
    ]
    if parity.reference_kl_mean is not None:
        pairs.append(("KL of transformers' own bfloat16, mean", Html(f"{number(parity.reference_kl_mean)} nats")))
    if fault := parity.first_fault:
        where = "outside the layers" if fault.layer is None else f"layer {fault.layer}"
        pairs.append(("First place that differs", f"{where}, {fault.group}: {', '.join(fault.tensors)}"))
    body = (f"<p>{said.text}</p>", definitions(pairs))
    return Part("parity", "Parity", section("parity", title, lead, *body))


def _with_limit(value: float | None, limit: float, applies: bool) -> Html:
    return Html(f"{number(value)}{f' of at most {bound(limit)}' if applies else ''}")
