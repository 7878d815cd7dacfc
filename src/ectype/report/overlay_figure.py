"""The plot of our training loss over the reference's, single updates and trailing means. Arrays in, Plotly data out.

Shapes: N updates that both logs hold, W = N - width + 1 trailing means. A trace's `meta.view` says with which view it
is shown; the page's buttons change the view.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ectype.compare.overlay import Band
from ectype.compare.trajectory import smooth
from ectype.report.strokes import LINKED, Figure, axis_of, line_trace, note_at, steps_axis, thinned, vertical

_NOTE_STEP = 0.055
_LEAST_MEAN_NATS = 1e-12
"""A trailing mean of differences that cancel is what summing in float64 leaves; below this it says nothing."""


@dataclass(frozen=True)
class Limit:
    """A level that differences are judged by, and what to call it."""

    name: str
    nats: float


@dataclass(frozen=True)
class Mark:
    """An update worth a line through the plot, and why."""

    step: int
    text: str


def own_loss(steps_N: np.ndarray, ours_N: np.ndarray) -> Figure:
    """Our training loss alone."""
    kept = thinned(ours_N)
    lines = [line_trace(steps_N[kept], ours_N[kept], "ours", "@ours", 1.6)]
    axes = {"xaxis": steps_axis(), "yaxis": axis_of("nats per token")}
    return {"data": lines, "layout": {"height": 380, "meta": LINKED, **axes}}


def training_loss(
    steps_N: np.ndarray,
    ours_N: np.ndarray,
    reference_N: np.ndarray,
    band: Band,
    limit: Limit,
    landmarks: Sequence[int],
    marks: Sequence[Mark] = (),
    mean_limit_nats: float | None = None,
    horizon_step: int | None = None,
) -> Figure:
    """Our training loss over the reference's, and below it the size of their difference on a logarithmic axis.

    Args:
        steps_N, ours_N, reference_N: the updates that both logs hold, and their losses in nats per token.
        band: trailing means of the differences and the half-width that single updates' noise allows them.
        limit: of a single update; it ends at `horizon_step`, from which on rounding alone moves the loss.
        landmarks: updates with a faint line.
        marks: updates with a line and a note, such as the first departure.
        mean_limit_nats: of a trailing mean; None without one.
        horizon_step: None when all updates can be compared one by one.
    """
    data = [
        *_raw(steps_N, ours_N, reference_N, limit, horizon_step),
        *_smoothed(ours_N, reference_N, band, mean_limit_nats),
    ]
    noted = [*marks, *([] if horizon_step is None else [Mark(horizon_step, "horizon")])]
    middle = (float(steps_N[0]) + float(steps_N[-1])) / 2
    layout: Figure = {
        "height": 580,
        "meta": LINKED,
        "xaxis": steps_axis() | {"anchor": "y2"},
        "yaxis": axis_of("nats per token") | {"domain": [0.42, 1]},
        "yaxis2": axis_of("|difference|, nats", log=True) | {"domain": [0, 0.34]},
        "shapes": [
            *(vertical(step) for step in landmarks),
            *(vertical(mark.step, "@tolerance", "dash") for mark in noted),
        ],
        "annotations": [
            note_at(mark.step, mark.text, 1 - place * _NOTE_STEP, "left" if mark.step <= middle else "right")
            for place, mark in enumerate(noted)
        ],
    }
    return {"data": data, "layout": layout}


def _raw(
    steps_N: np.ndarray, ours_N: np.ndarray, reference_N: np.ndarray, limit: Limit, horizon_step: int | None
) -> list[Figure]:
    difference_N = np.abs(ours_N - reference_N)
    kept = thinned(ours_N, difference_N)
    steps = steps_N[kept]
    dots = line_trace(steps, _positive(difference_N[kept]), "|ours − reference|", "@difference", 0, axis="y2")
    dots |= {"mode": "markers", "marker": {"color": "@difference", "size": 3.5, "opacity": 0.75}}
    ends = [float(steps[0]), float(steps[-1] if horizon_step is None else horizon_step)]
    lines = [
        line_trace(steps, reference_N[kept], "reference", "@reference", 5),
        line_trace(steps, ours_N[kept], "ours", "@ours", 1.6),
        dots | {"hovertemplate": "%{y:.2e}<extra>%{fullData.name}</extra>"},
        line_trace(ends, [limit.nats] * 2, limit.name, "@tolerance", 1.5, axis="y2", dash="dash", number_format=".2e"),
    ]
    return [line | {"meta": {"view": "raw"}} for line in lines]


def _smoothed(ours_N: np.ndarray, reference_N: np.ndarray, band: Band, mean_limit_nats: float | None) -> list[Figure]:
    """Trailing means: of both losses above, of the difference and its band below; hidden until asked for."""
    if not len(band.steps):
        return []
    width = len(ours_N) - len(band.steps) + 1
    ours_W, reference_W, size_W = smooth(ours_N, width), smooth(reference_N, width), np.abs(band.smoothed)
    kept = thinned(ours_W, size_W, band.half_width)
    steps = band.steps[kept]
    allowed = line_trace(
        steps, _positive(band.half_width[kept]), "deviation band", "@bare", 1, axis="y2", dash="dot",
        number_format=".2e",
    )  # fmt: skip
    name = f"|mean difference of {width}|"
    lines = [
        line_trace(steps, reference_W[kept], f"reference, mean of {width}", "@reference", 7),
        line_trace(steps, ours_W[kept], f"ours, mean of {width}", "@ours", 2, dash="solid"),
        allowed | {"fill": "tozeroy", "fillcolor": "@band"},
        line_trace(
            steps, _positive(size_W[kept], _LEAST_MEAN_NATS), name, "@difference", 2, axis="y2", number_format=".2e"
        ),
    ]
    if mean_limit_nats is not None:
        ends, level = [float(steps[0]), float(steps[-1])], [mean_limit_nats] * 2
        name = "tolerance of the mean"
        lines.append(line_trace(ends, level, name, "@tolerance", 1.5, axis="y2", dash="dash", number_format=".2e"))
    return [line | {"meta": {"view": "smoothed"}, "visible": False} for line in lines]


def _positive(values: np.ndarray, least: float = 0.0) -> np.ndarray:
    """What has a place on a logarithmic axis."""
    return np.where(values > least, values, np.nan)
