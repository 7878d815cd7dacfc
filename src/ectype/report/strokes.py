"""What the report's plots are made of: lines, marks, axes and notes as Plotly dictionaries.

A colour is a role such as "@ours"; the page's script replaces it with the colour of the theme in force.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Figure = dict[str, Any]

MOST_POINTS = 4000
"""Points a line may have; a longer series keeps its extremes."""
DOMAIN_ROLES = ("@one", "@two", "@three", "@four", "@five", "@six")
DOMAIN_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star-triangle-down")

LINKED = {"linked": "updates"}
"""`meta` of a layout: figures whose horizontal axis counts updates show the same range."""


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


def line_trace(
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
    """A line through points [N]; values that are not finite leave gaps."""
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


def ramp(place: int, count: int) -> str:
    """The shade of the `place`-th of `count` landmarks: from faint to full in five steps."""
    return f"@ramp-{round(4 * place / max(1, count - 1)) + 1}"


def marker(place: int) -> Figure:
    """The mark of the `place`-th domain or level: its own shape beside its own colour."""
    return {"symbol": DOMAIN_SYMBOLS[place % 6], "size": 9, "color": DOMAIN_ROLES[place % 6]}


def axis_of(title: str, *, log: bool = False, percent: bool = False) -> Figure:
    """An axis with its title, logarithmic or in per cent."""
    axis: Figure = {"title": {"text": title}, "automargin": True}
    if log:
        axis |= {"type": "log", "exponentformat": "power", "dtick": 1, "tickfont": {"size": 11}}
    if percent:
        axis |= {"tickformat": ".0%", "rangemode": "tozero"}
    return axis


def steps_axis() -> Figure:
    """Updates as an axis."""
    return axis_of("update") | {"tickformat": ",d"}


def landmark_axis(names: Sequence[str]) -> Figure:
    """Landmarks side by side, at places 0, 1, 2, whatever lies between them."""
    places = list(range(len(names)))
    return {
        "title": {"text": "landmark, updates"},
        "tickmode": "array",
        "tickvals": places,
        "ticktext": list(names),
        "range": [-0.5, len(names) - 0.5],
        "showgrid": False,
    }


def level_shape(value: float, axis: str) -> Figure:
    """A dashed level across a plot."""
    line = {"color": "@tolerance", "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": axis, "y0": value, "y1": value, "line": line}


def note_at(step: int, text: str, height: float = 1.0, anchor: str = "left") -> Figure:
    """Text beside a vertical line, at its top or at `height` of the plot."""
    place = {"x": step, "xref": "x", "xanchor": anchor, "y": height, "yref": "paper", "yanchor": "top"}
    return place | {"text": f" {text} ", "showarrow": False, "font": {"color": "@tolerance", "size": 12}}


def vertical(step: int, role: str = "@grid", dash: str = "dot") -> Figure:
    """A line through all panels of a plot at one update."""
    line = {"color": role, "width": 1, "dash": dash}
    return {"type": "line", "xref": "x", "x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1, "line": line}
