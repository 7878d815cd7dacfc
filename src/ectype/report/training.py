"""The report's section on the training loss, and the controls of its plot. Records in, markup out."""

from html import escape

import numpy as np

from ectype.compare.overlay import Overlay
from ectype.compare.record import VerdictRecord
from ectype.compare.trajectory import Differences
from ectype.compare.trajectory_criteria import STEP_LOSS
from ectype.report.markup import Cell, Html, Part, bound, definitions, missing, number, section
from ectype.report.markup import figure as plot
from ectype.report.overlay_figure import Limit, Mark, own_loss, training_loss
from ectype.report.records import RunRecords
from ectype.report.strokes import MOST_POINTS


def training_part(records: RunRecords) -> Part:
    """Our training loss over the reference's log, and how far apart they are."""
    title, lead = "Training loss", "Our log over the reference's. Close curves are needed, but prove nothing alone."
    run, reference, differences, overlay = (
        records.metrics, records.reference_log, records.differences, records.overlay,
    )  # fmt: skip
    landmarks = records.recipe.landmarks
    if run is None or len(run.steps) == 0:
        none = missing("This run has logged no update.", "ectype train")
        return Part("training", "Training", section("training", title, lead, none))
    if reference is None or differences is None or overlay is None or records.band is None:
        place = plot("training", "Loss per update", f"Our training loss over {len(run.steps):,} updates.")
        why = records.reference_problem or "the reference names none, or they share no update"
        none = missing(f"There is no log of the reference to lay it over: {why}.")
        drawn = own_loss(run.steps, run.loss)
        return Part("training", "Training", section("training", title, lead, place, none), {"training": drawn})
    theirs = reference.loss[np.isin(reference.steps, differences.steps)]
    drawn = training_loss(
        differences.steps,
        theirs + differences.loss,
        theirs,
        records.band,
        _step_limit(records.verdict, overlay),
        landmarks,
        _departures(overlay),
        overlay.smoothed_threshold,
        records.verdict.horizon.first_step_beyond if records.verdict else None,
    )
    warning = f'<p class="note" role="note">{escape(overlay.warning)}</p>' if overlay.warning else ""
    place = plot(
        "training",
        "Loss per update",
        _described(overlay, len(differences.steps)),
        above=_controls(overlay, differences),
    )
    body = (warning, place, _training_facts(differences, overlay))
    return Part("training", "Training", section("training", title, lead, *body), {"training": drawn})


def _described(overlay: Overlay, updates: int) -> str:
    drawn = f" {MOST_POINTS:,} points are drawn, extremes among them." if updates > MOST_POINTS else ""
    return (
        f"Top: the reference as a broad band, ours as a thin line on it, over {overlay.steps_compared:,} updates. "
        "Bottom: the size of their difference, one dot per update; updates whose losses are equal have none. The means "
        f"of {overlay.smoothing_steps} lie over the band that the noise of single updates allows them. Dotted lines "
        f"are landmarks.{drawn}"
    )


def _departures(overlay: Overlay) -> list[Mark]:
    """Where the run first leaves the reference: by a single update, by its trailing mean."""
    found = (
        (overlay.first_raw_departure_step, "first update beyond the floor"),
        (overlay.first_band_departure_step, "mean leaves the band"),
    )
    return [Mark(step, f"{text}, {step:,}") for step, text in found if step is not None]


def _controls(overlay: Overlay, differences: Differences) -> str:
    """Buttons and fields that the keyboard reaches: what is drawn, and of which updates."""
    first, last = int(differences.steps[0]), int(differences.steps[-1])
    views = {"raw": "single updates", "smoothed": f"means of {overlay.smoothing_steps}", "both": "both"}
    buttons = "".join(
        f'<button type="button" data-view="{view}" aria-pressed="{str(view == "raw").lower()}">{words}</button>'
        for view, words in views.items()
    )
    fields = "".join(
        f'<label>{name} <input type="number" data-end="{name}" min="{first}" max="{last}" value="{value}"></label>'
        for name, value in (("from", first), ("to", last))
    )
    spots = {"all": (first, last), "last quarter": (last - (last - first) // 4, last)}
    departed = min((mark.step for mark in _departures(overlay)), default=None)
    if departed is not None:
        width = max(1, (last - first) // 20)
        spots["first departure"] = (max(first, departed - width), min(last, departed + width))
    goes = "".join(
        f'<button type="button" data-go="{low},{high}">{name}</button>' for name, (low, high) in spots.items()
    )
    moves = "".join(
        f'<button type="button" data-move="{move}" aria-label="{words}" title="{words}">{sign}</button>'
        for move, words, sign in (
            ("in", "zoom in", "+"), ("out", "zoom out", "−"), ("back", "earlier updates", "←"),
            ("on", "later updates", "→"),
        )
    )  # fmt: skip
    return (
        f'<div class="controls" data-controls="training" data-whole="{first},{last}">'
        f'<div role="group" aria-label="What is drawn">{buttons}</div>'
        f'<div role="group" aria-label="Updates that are shown">{fields}{moves}{goes}</div></div>'
    )


def _step_limit(verdict: VerdictRecord | None, overlay: Overlay) -> Limit:
    """What a single update's loss is judged by: the verdict's tolerance, or the floor where there is no verdict."""
    found = [c.tolerance for c in verdict.criteria if c.name == STEP_LOSS] if verdict else []
    if found and found[0] is not None:
        return Limit("tolerance", found[0])
    return Limit("float32 floor", overlay.raw_threshold)


def _training_facts(differences: Differences, overlay: Overlay) -> str:
    first = overlay.first_raw_departure_step
    pairs: list[tuple[Cell, Cell]] = [
        ("Largest difference", Html(f"{number(overlay.largest)} nats, at update {overlay.largest_step:,}")),
        (
            Html(f"First update beyond the float32 floor, {bound(overlay.raw_threshold)} nats"),
            "none" if first is None else f"{first:,}",
        ),
    ]
    if overlay.largest_smoothed is not None:
        width = overlay.smoothing_steps
        pairs.append((f"Largest difference, mean of {width}", Html(f"{number(overlay.largest_smoothed)} nats")))
    if overlay.band is not None:
        departed = overlay.first_band_departure_step
        words = "never" if departed is None else f"from update {departed:,} on"
        pairs.append((f"Mean of {overlay.smoothing_steps} beyond the noise of single updates", words))
    if differences.grad_norm is not None:
        sizes = np.abs(differences.grad_norm)
        worst = None if np.isnan(sizes).any() else float(np.max(sizes, initial=0.0))
        pairs.append(("Largest difference of the gradient norm", Html(f"{number(worst)} relative")))
    if differences.skipped is not None:
        ours, theirs = ([f"{step:,}" for step in steps] for steps in differences.skipped)
        same = "the same in both: " + (", ".join(ours) or "none") if ours == theirs else None
        text = same or f"ours {', '.join(ours) or 'none'}; reference {', '.join(theirs) or 'none'}"
        pairs.append(("Skipped updates", text))
    if differences.absent:
        pairs.append(("Updates that our log lacks", f"{differences.absent:,}"))
    return definitions(pairs)
