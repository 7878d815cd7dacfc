"""The report's plots as Plotly figure data: numbers in, plain dictionaries out.

A colour is a role such as "@ours"; the page's script replaces it with the colour of the theme in force.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

Figure = dict[str, Any]

MOST_POINTS = 4000
"""Points a line may have; a longer series keeps its extremes."""
DOMAIN_ROLES = ("@one", "@two", "@three", "@four", "@five", "@six")
DOMAIN_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star-triangle-down")


@dataclass(frozen=True)
class Limit:
    """A level that differences are judged by, and what to call it."""

    name: str
    nats: float


def thinned(*series_N: np.ndarray, most_points: int = MOST_POINTS) -> np.ndarray:
    """Indices [M <= most_points] into series of one length that keep each one's extremes in every stretch.

    Args:
        series_N: float arrays [N]; NaN is no extreme.
        most_points: bound on M.
    """
    count = len(series_N[0])
    if count <= most_points:
        return np.arange(count)
    edges = np.linspace(0, count, (most_points - 2) // (2 * len(series_N)) + 1).astype(np.int64)
    kept = {0, count - 1}
    for values_N in series_N:
        for start, end in pairwise(edges.tolist()):
            stretch = values_N[start:end]
            if np.isfinite(stretch).any():
                kept |= {start + int(np.nanargmin(stretch)), start + int(np.nanargmax(stretch))}
    return np.array(sorted(kept))


def numbers(values: np.ndarray | Sequence[float]) -> list[float | None]:
    """A list for JSON: None where a value is not finite."""
    return [float(value) if np.isfinite(value) else None for value in values]


def training_loss(
    steps_N: np.ndarray,
    ours_N: np.ndarray,
    reference_N: np.ndarray | None,
    limit: Limit | None,
    landmarks: Sequence[int],
    horizon_step: int | None = None,
) -> Figure:
    """Our training loss over the reference's, and below it the size of their difference on a logarithmic axis.

    The limit of a single update ends at `horizon_step`, from which on rounding alone moves the loss.
    """
    if reference_N is None:
        kept = thinned(ours_N)
        lines = [_line(steps_N[kept], ours_N[kept], "ours", "@ours", 1.6)]
        return {"data": lines, "layout": {"height": 380, "xaxis": _steps_axis(), "yaxis": _axis("nats per token")}}
    difference_N = np.abs(ours_N - reference_N)
    kept = thinned(ours_N, difference_N)
    steps, shown = steps_N[kept], difference_N[kept]
    shown = np.where(shown > 0, shown, np.nan)
    data = [
        _line(steps, reference_N[kept], "reference", "@reference", 5),
        _line(steps, ours_N[kept], "ours", "@ours", 1.6),
        _dots(steps, shown, "|ours − reference|", "@difference"),
    ]
    shapes = [_vertical(step) for step in landmarks]
    if limit is not None:
        ends = [float(steps[0]), float(steps[-1] if horizon_step is None else horizon_step)]
        data.append(_line(ends, [limit.nats] * 2, limit.name, "@tolerance", 1.5, axis="y2", dash="dash"))
    layout: Figure = {
        "height": 560,
        "xaxis": _steps_axis() | {"anchor": "y2"},
        "yaxis": _axis("nats per token") | {"domain": [0.42, 1]},
        "yaxis2": _axis("|difference|, nats", log=True) | {"domain": [0, 0.34]},
        "shapes": shapes,
    }
    if horizon_step is not None:
        shapes.append(_vertical(horizon_step, "@tolerance"))
        layout["annotations"] = [_note(horizon_step, "horizon")]
    return {"data": data, "layout": layout}


def held_out_difference(
    steps: Sequence[int], by_domain: Mapping[str, Sequence[float]], tolerance_nats: float | None
) -> Figure:
    """Held-out loss, ours less the reference's, at each landmark: one mark per domain, spread so that none hides."""
    names = [f"{step:,}" for step in steps]
    data = []
    for place, (domain, differences) in enumerate(by_domain.items()):
        shift = (place - (len(by_domain) - 1) / 2) * min(0.14, 0.7 / max(1, len(by_domain)))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": domain,
                "x": [position + shift for position in range(len(steps))],
                "y": numbers(differences),
                "customdata": names,
                "marker": _marker(place),
                "hovertemplate": "update %{customdata}: %{y:.2e} nats<extra>%{fullData.name}</extra>",
            }
        )
    layout: Figure = {
        "height": 380,
        "hovermode": "closest",
        "xaxis": _landmark_axis(names),
        "yaxis": _axis("ours − reference, nats") | {"zeroline": True, "exponentformat": "power"},
    }
    if tolerance_nats is not None:
        layout["shapes"] = [_level(sign * tolerance_nats, "y") for sign in (1, -1)]
    return {"data": data, "layout": layout}


def held_out_loss(
    steps: Sequence[int], ours: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> Figure:
    """Held-out loss by domain over the landmarks: ours as a marked line, the reference as a broad band below it."""
    data = []
    for place, domain in enumerate(ours):
        role = DOMAIN_ROLES[place % 6]
        band = _line(steps, reference[domain], f"{domain}, reference", role, 9)
        line = _line(steps, ours[domain], domain, role, 1.8) | {"mode": "lines+markers", "marker": _marker(place)}
        data += [
            band | {"opacity": 0.28, "showlegend": False, "legendgroup": domain},
            line | {"legendgroup": domain},
        ]
    return {"data": data, "layout": {"height": 420, "xaxis": _steps_axis(), "yaxis": _axis("nats per token")}}


def kl_by_landmark(steps: Sequence[int], levels: Mapping[str, Sequence[float]], tolerance_nats: float | None) -> Figure:
    """Token KL at each landmark on a logarithmic axis: one line per level (mean, 99th percentile, largest)."""
    names = [f"{step:,}" for step in steps]
    places = list(range(len(steps)))
    dashes = ("solid", "dash", "dot")
    data = []
    for place, (level, values) in enumerate(levels.items()):
        positive = [value if value > 0 else float("nan") for value in values]
        line = _line(places, positive, level, DOMAIN_ROLES[place], 2, dash=dashes[place % 3], number_format=".2e")
        data.append(line | {"mode": "lines+markers", "marker": _marker(place)})
    if tolerance_nats is not None and places:
        ends = [places[0] - 0.4, places[-1] + 0.4]
        data.append(_line(ends, [tolerance_nats] * 2, "tolerance of the mean", "@tolerance", 1.5, dash="dash"))
    layout = {"height": 380, "xaxis": _landmark_axis(names), "yaxis": _axis("KL, nats per token", log=True)}
    return {"data": data, "layout": layout}


def kl_distribution(
    shares_by_landmark: Mapping[int, Sequence[float]], log10_lowest: float, bins_per_decade: int
) -> Figure:
    """How per-token KL is distributed: share of tokens per bin of log10 KL, one outline per landmark."""
    steps = list(shares_by_landmark)
    filled = [place for shares in shares_by_landmark.values() for place, share in enumerate(shares) if share > 0]
    first, last = (max(0, min(filled) - 1), max(filled) + 2) if filled else (0, 0)
    data = []
    for place, step in enumerate(steps):
        shares = list(shares_by_landmark[step])[first:last]
        edges = [10.0 ** (log10_lowest + (first + bin_) / bins_per_decade) for bin_ in range(len(shares))]
        line = _line(edges, shares, f"{step:,}", _ramp(place, len(steps)), 2.2, number_format=".1%")
        line["line"]["shape"] = "hv"
        data.append(line)
    layout = {
        "height": 380,
        "xaxis": _axis("per-token KL, nats", log=True),
        "yaxis": _axis("share of tokens", percent=True),
        "legend": {"title": {"text": "after update", "side": "top", "font": {"size": 13}}},
    }
    return {"data": data, "layout": layout}


def coverage(passes: Sequence[str], windows_by_fate: Mapping[str, Sequence[int]]) -> Figure:
    """For each pass over the corpus, its windows by what became of them, as bars laid end to end."""
    roles = ("@one", "@four", "@bad", "@bare", "@bare-faint")
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": times,
            "y": list(passes),
            "x": list(counts),
            "marker": {"color": roles[place % 5], "line": {"color": "@surface", "width": 1}},
            "hovertemplate": "%{y}: %{x:,} windows<extra>%{fullData.name}</extra>",
        }
        for place, (times, counts) in enumerate(windows_by_fate.items())
    ]
    layout = {
        "height": 150 + 40 * len(passes),
        "barmode": "stack",
        "legend": {"traceorder": "normal"},
        "hovermode": "closest",
        "xaxis": _axis("windows"),
        "yaxis": {"autorange": "reversed", "showgrid": False, "automargin": True, "ticksuffix": "  "},
    }
    return {"data": data, "layout": layout}


def plan_parts(seconds: Mapping[str, float], gigabytes: Mapping[str, float]) -> Figure:
    """Two stacked bars: what one step's seconds go to, and what a device's memory goes to."""
    roles = dict(zip((*seconds, *gigabytes), DOMAIN_ROLES * 2, strict=False))
    bars = (("seconds", "x", "y", seconds), ("GB", "x2", "y2", gigabytes))
    data = [
        {
            "type": "bar", "orientation": "h", "name": name, "x": [value], "y": [unit], "xaxis": across, "yaxis": down,
            "marker": {"color": roles[name]}, "hovertemplate": f"%{{x:.3f}} {unit}<extra>{name}</extra>",
            "text": [name], "textposition": "inside", "insidetextanchor": "middle",
        }
        for unit, across, down, parts in bars for name, value in parts.items()
    ]  # fmt: skip
    hidden = {"showticklabels": False, "showgrid": False}
    layout = {
        "height": 300, "barmode": "stack", "showlegend": False, "hovermode": "closest",
        "grid": {"rows": 2, "columns": 1, "pattern": "independent"},
        "xaxis": _axis("seconds a step"), "yaxis": hidden, "xaxis2": _axis("GB a device"), "yaxis2": hidden,
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _line(
    x: Any,
    y: Any,
    name: str,
    role: str,
    width: float,
    *,
    axis: str = "y",
    dash: str = "solid",
    number_format: str = ".6f",
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [float(value) for value in x],
        "y": numbers(y),
        "yaxis": axis,
        "line": {"color": role, "width": width, "dash": dash},
        "hovertemplate": f"%{{y:{number_format}}}<extra>%{{fullData.name}}</extra>",
    }


def _dots(x: np.ndarray, y: np.ndarray, name: str, role: str) -> Figure:
    """Marks on the second axis, for values that may be zero and then have no place on its logarithmic scale."""
    marks = _line(x, y, name, role, 0, axis="y2", number_format=".2e")
    del marks["line"]
    return marks | {"mode": "markers", "marker": {"color": role, "size": 3.5, "opacity": 0.75}}


def _ramp(place: int, count: int) -> str:
    """The shade of the `place`-th of `count` landmarks: from faint to full in five steps."""
    return f"@ramp-{round(4 * place / max(1, count - 1)) + 1}"


def _marker(place: int) -> Figure:
    return {"symbol": DOMAIN_SYMBOLS[place % 6], "size": 9, "color": DOMAIN_ROLES[place % 6]}


def _axis(title: str, *, log: bool = False, percent: bool = False) -> Figure:
    axis: Figure = {"title": {"text": title}, "automargin": True}
    if log:
        axis |= {"type": "log", "exponentformat": "power", "dtick": 1, "tickfont": {"size": 11}}
    if percent:
        axis |= {"tickformat": ".0%", "rangemode": "tozero"}
    return axis


def _steps_axis() -> Figure:
    return _axis("update") | {"tickformat": ",d"}


def _landmark_axis(names: Sequence[str]) -> Figure:
    places = list(range(len(names)))
    return {
        "title": {"text": "landmark, updates"},
        "tickmode": "array",
        "tickvals": places,
        "ticktext": list(names),
        "range": [-0.5, len(names) - 0.5],
        "showgrid": False,
    }


def _level(value: float, axis: str) -> Figure:
    line = {"color": "@tolerance", "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": value, "y1": value, "line": line}


def _note(step: int, text: str) -> Figure:
    """Text at the top of a vertical line."""
    place = {"x": step, "xref": "x", "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "top"}
    return place | {"text": f" {text}", "showarrow": False, "font": {"color": "@tolerance", "size": 12}}


def _vertical(step: int, role: str = "@grid") -> Figure:
    line = {"color": role, "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1, "line": line}
