"""The report's sections on what was measured: landmarks, domains, token KL. Records in, markup out."""

import math
from collections.abc import Mapping
from html import escape

import numpy as np

from ectype.evaluate.disjointness import Disjointness
from ectype.evaluate.record import Evaluation, Summary, array
from ectype.report import figures
from ectype.report.kl_figure import Strip, drawn_strips, kl_distribution
from ectype.report.markup import (
    Cell,
    Column,
    Html,
    Part,
    fixed,
    missing,
    number,
    percent,
    section,
    table,
)
from ectype.report.markup import figure as plot
from ectype.report.matrix import matrix
from ectype.report.records import RunRecords

_NEARLY_ALL = 0.99
"""Share of tokens in the lowest bin from which on a distribution has no shape to show."""


def landmarks_part(records: RunRecords) -> Part:
    """What was measured at each landmark, with its tolerance and whether it holds; below, both sides' values."""
    title = "Landmarks"
    lead = "Our checkpoint beside the reference's, both run in JAX on the same held-out tokens."
    evaluations = records.evaluations
    if not evaluations:
        none = missing("No landmark was evaluated.", records.command("evaluate"))
        return Part("landmarks", "Landmarks", section("landmarks", title, lead, none))
    columns = [
        Column("after update", "text"),
        Column("held-out loss, ours", "number"),
        Column("reference", "number"),
        Column("difference, nats", "number"),
        Column("bits per byte", "number"),
        Column("KL mean, nats", "number"),
        Column("KL 99 %", "number"),
        Column("KL largest", "number"),
        Column("top-1 agreement", "number"),
    ]
    steps = sorted({*records.recipe.landmarks, *evaluations, *records.tasks})
    rows = [_landmark_row(step, evaluations[step].overall if step in evaluations else None) for step in steps]
    last = evaluations[max(evaluations)]
    protocol = last.protocol
    how = (
        f"Windows of {protocol.window_tokens:,} tokens, {protocol.windows}; scored: {protocol.scored}; "
        f"{last.overall.targets:,} targets; {protocol.vocabulary_rows:,} vocabulary rows; computed in "
        f"{protocol.compute_dtype}, log-softmax in {protocol.softmax}, sums in {protocol.accumulation}. "
        f"{protocol.kl}."
    )
    body = table("All domains together, at each landmark", columns, rows)
    fine = f'<p class="fine">{escape(how)}</p>'
    return Part("landmarks", "Landmarks", section("landmarks", title, lead, matrix(records, steps), body, fine))


def _landmark_row(step: int, summary: Summary | None) -> list[Cell]:
    if summary is None:
        return [f"{step:,}", "not evaluated", *[None] * 7]
    return [
        f"{step:,}",
        Html(fixed(summary.loss.ours, 6)),
        Html(fixed(summary.loss.reference, 6)),
        Html(number(summary.loss.difference)),
        Html(fixed(summary.bits_per_byte.ours, 4)),
        Html(number(summary.kl_mean)),
        Html(number(summary.kl_p99)),
        Html(number(summary.kl_max)),
        Html(percent(summary.top1_agreement, 3)),
    ]


def domains_part(evaluations: Mapping[int, Evaluation], disjoint: Disjointness | None = None) -> Part:
    """Held-out loss by domain over the landmarks, and the differences on their own scale."""
    title, lead = "Held-out text by domain", "A copy must match on each kind of text, not on their average alone."
    if not evaluations:
        return Part("domains", "Domains", section("domains", title, lead, missing("No landmark was evaluated.")))
    steps = sorted(evaluations)
    names = list(evaluations[steps[-1]].domains)
    summaries = {name: [evaluations[step].domains[name].summary for step in steps] for name in names}
    ours = {name: [_float(s.loss.ours) for s in found] for name, found in summaries.items()}
    theirs = {name: [_float(s.loss.reference) for s in found] for name, found in summaries.items()}
    differences = {name: [_float(s.loss.difference) for s in found] for name, found in summaries.items()}
    drawn = {
        "domain-loss": figures.held_out_loss(steps, ours, theirs),
        "domain-difference": figures.held_out_difference(steps, differences, None),
    }
    by_landmark = table(
        "Ours less the reference, nats per token",
        [Column("domain"), *(Column(f"update {step:,}", "number") for step in steps)],
        [[name, *(Html(number(value)) for value in found)] for name, found in differences.items()],
    )
    places = plot("domain-loss", "Held-out loss", "Marked lines are ours; the broad bands below them the reference.")
    places += plot(
        "domain-difference",
        "Difference",
        "Ours less the reference, at each landmark. Zero is no difference.",
        by_landmark,
    )
    columns = [Column("domain"), *(Column(name, "number") for name in _DOMAIN_COLUMNS)]
    rows = [[name, *_domain_cells(found[-1])] for name, found in summaries.items()]
    body = table(f"By domain, after update {steps[-1]:,}", columns, rows)
    plots = f'<div class="plots">{places}</div>'
    return Part("domains", "Domains", section("domains", title, lead, plots, body, _searched(disjoint)), drawn)


def _searched(disjoint: Disjointness | None) -> str:
    """What was looked for in training, in words."""
    if disjoint is None:
        return '<p class="fine">Training was not searched for this text.</p>'
    sets = "; ".join(
        f"{escape(name)}: blocks of {found.block_tokens:,} tokens in {found.windows_searched:,} windows"
        for name, found in disjoint.sets.items()
    )
    return (
        f'<p class="fine">No block of held-out text stands in the training windows that were searched, of '
        f"{disjoint.windows:,} ({sets}).</p>"
    )


def sets_part(sets: Mapping[str, Mapping[int, Evaluation]]) -> Part:
    """Further held-out sets, each by domain at its last landmark."""
    title, lead = "Further held-out text", "Sets beside the one that the verdict rests on, by domain."
    columns = [Column("domain"), *(Column(name, "number") for name in _DOMAIN_COLUMNS)]
    tables = []
    for name, evaluations in sets.items():
        step = max(evaluations)
        last, protocol = evaluations[step], evaluations[step].protocol
        summaries = {domain: found.summary for domain, found in last.domains.items()} | {"all": last.overall}
        rows = [[domain, *_domain_cells(summary)] for domain, summary in summaries.items()]
        tables.append(table(f"{name}, after update {step:,}", columns, rows))
        stride = "" if protocol.stride_tokens is None else f", {protocol.stride_tokens:,} new ones each"
        prefix = "" if protocol.prefix_id is None else f", behind id {protocol.prefix_id}"
        how = f"Windows of {protocol.window_tokens:,} tokens{stride}, {protocol.windows}{prefix}; {protocol.scored}."
        tables.append(f'<p class="fine">{escape(how)}</p>')
    return Part("sets", "Further text", section("sets", title, lead, *tables))


_DOMAIN_COLUMNS = (
    "targets", "loss, ours", "loss, reference", "difference, nats", "perplexity, ours", "perplexity, reference",
    "bits per byte, ours", "KL mean, nats", "top-1 agreement",
)  # fmt: skip


def _domain_cells(summary: Summary) -> list[Cell]:
    return [
        summary.targets,
        Html(fixed(summary.loss.ours, 6)),
        Html(fixed(summary.loss.reference, 6)),
        Html(number(summary.loss.difference)),
        Html(fixed(summary.perplexity.ours, 3)),
        Html(fixed(summary.perplexity.reference, 3)),
        Html(fixed(summary.bits_per_byte.ours, 4)),
        Html(number(summary.kl_mean)),
        Html(percent(summary.top1_agreement, 3)),
    ]


def divergence_part(evaluations: Mapping[int, Evaluation], tolerance_nats: float | None) -> Part:
    """Token KL over the landmarks and its distribution over tokens."""
    title = "Token KL"
    lead = "How far our next-token distribution lies from the reference's, KL(reference ‖ ours), token by token."
    if not evaluations:
        return Part("kl", "Token KL", section("kl", title, lead, missing("No landmark was evaluated.")))
    steps = sorted(evaluations)
    levels = {step: _kl_levels(evaluations[step].overall) for step in steps}
    by_level = {name: [levels[step][name] for step in steps] for name in ("mean", "99th percentile", "largest")}
    shares, lowest, per_decade = _kl_shares(evaluations)
    unmoved = [step for step, found in shares.items() if found[0] > _NEARLY_ALL]
    moved = [Strip(step, shares[step], levels[step]) for step in steps if step not in unmoved]
    strips = drawn_strips(moved)
    drawn = {
        "kl-landmarks": figures.kl_by_landmark(steps, by_level, tolerance_nats),
        "kl-distribution": kl_distribution(strips, lowest, per_decade),
    }
    drawn["kl-landmarks"]["layout"]["height"] = drawn["kl-distribution"]["layout"]["height"]
    left_out = "".join(f" Update {step:,} is left out: nearly all of its KL is 0." for step in unmoved)
    if len(strips) < len(moved):
        left_out += f" {len(strips)} of {len(moved)} landmarks are drawn, evenly spread; the table holds all."
    rows: list[list[Cell]] = [
        [f"{step:,}", *(Html(number(value)) for value in levels[step].values())] for step in steps
    ]
    names = ["after update", *(f"{name}, nats" for name in levels[steps[0]])]
    numbers = table(
        "Token KL at each landmark", [Column(n, "number" if i else "text") for i, n in enumerate(names)], rows
    )
    places = plot("kl-landmarks", "At each landmark", "A level of exactly zero has no place on the logarithmic axis.")
    shown = f"Share of held-out tokens by size of their KL, in steps of a tenth of a decade.{left_out}"
    places += plot("kl-distribution", "Over tokens", shown)
    folded = f'<details class="card"><summary>The numbers</summary>{numbers}</details>'
    return Part("kl", "Token KL", section("kl", title, lead, f'<div class="plots">{places}</div>', folded), drawn)


def _kl_levels(summary: Summary) -> dict[str, float]:
    return {
        "mean": _float(summary.kl_mean),
        "median": _float(summary.kl_median),
        "99th percentile": _float(summary.kl_p99),
        "largest": _float(summary.kl_max),
    }


def _kl_shares(evaluations: Mapping[int, Evaluation]) -> tuple[dict[int, list[float]], float, int]:
    """Landmark -> share of all domains' tokens in each bin, with the bins' start and width."""
    shares = {}
    lowest, per_decade = 0.0, 1
    for step in sorted(evaluations):
        histograms = [domain.kl_histogram for domain in evaluations[step].domains.values()]
        counts = np.sum([array(histogram.counts) for histogram in histograms], axis=0)
        shares[step] = (counts / max(1.0, counts.sum())).tolist()
        lowest, per_decade = histograms[0].log10_lowest, histograms[0].bins_per_decade
    return shares, lowest, per_decade


def _float(value: float | None) -> float:
    return math.nan if value is None else value
