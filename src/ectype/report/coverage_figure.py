"""The map of the corpus: one strip per pass, shares of windows by how often they were read. Numbers in, Plotly out."""

from collections.abc import Sequence
from dataclasses import dataclass

from ectype.report.strokes import Figure, axis_of

_STRIP_PIXELS = 96
_GAP = 0.3
_MOST_GROUPS = 14
"""More groups of files than this are not named under the map."""
_LEAST_SHARE = 0.04
"""Of the axis, that a group must have for its name to fit under it."""
_LOOKS = {
    "read once": ("@one", ""), "more than once": ("@two", "x"), "unread": ("@bare", "/"),
}  # fmt: skip


@dataclass(frozen=True)
class Area:
    """A kind of windows, a key of `_LOOKS`, and its share of each bin."""

    name: str
    shares: Sequence[float]


@dataclass(frozen=True)
class Strip:
    """One pass. B bins lie between the B + 1 rising `ends`; `groups` are names with the window at which each begins."""

    name: str
    ends: Sequence[int]
    areas: Sequence[Area]
    groups: Sequence[tuple[str, int]]


def coverage_map(strips: Sequence[Strip]) -> Figure:
    """Stacked areas with a pattern for each kind, one strip below another, over the windows in order of the index."""
    data = []
    layout: Figure = {
        "height": 105 + _STRIP_PIXELS * len(strips),
        "hovermode": "x unified",
        "xaxis": axis_of("windows, in index order") | {"range": [0, max(strip.ends[-1] for strip in strips)]},
        "annotations": [],
    }
    for place, strip in enumerate(strips):
        axis = "y" if place == 0 else f"y{place + 1}"
        for area in strip.areas:
            data.append(_area(strip, area, axis, place))
        low = 1 - (place + 1) / len(strips)
        layout["yaxis" + axis[1:]] = axis_of("", percent=True) | {
            "domain": [low, low + (1 - _GAP) / len(strips)], "range": [0, 1], "tickvals": [0, 1], "showgrid": False,
        }  # fmt: skip
        layout["annotations"].append(
            {
                "text": f"<b>{strip.name}</b>", "showarrow": False, "font": {"size": 12}, "xref": "paper",
                "yref": f"{axis} domain", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom",
            }
        )  # fmt: skip
    layout["xaxis"] |= {"anchor": "y" if len(strips) == 1 else f"y{len(strips)}"} | _named_groups(strips[0])
    return {"data": data, "layout": layout}


def _area(strip: Strip, area: Area, axis: str, place: int) -> Figure:
    role, pattern = _LOOKS[area.name]
    shares = [*area.shares, area.shares[-1]]
    fill: Figure = {"fillcolor": role}
    if pattern:
        fill = {"fillpattern": {"shape": pattern, "fgcolor": role, "bgcolor": "@surface", "size": 6, "solidity": 0.45}}
    return {
        "type": "scatter", "mode": "lines", "name": area.name, "legendgroup": area.name, "showlegend": place == 0,
        "x": list(strip.ends), "y": shares, "yaxis": axis, "stackgroup": f"pass {place}",
        "line": {"color": role, "width": 0, "shape": "hv"},
        "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>",
    } | fill  # fmt: skip


def _named_groups(strip: Strip) -> Figure:
    """Ticks where groups of files begin, with their names, if there are few."""
    if not 1 < len(strip.groups) <= _MOST_GROUPS:
        return {}
    total = strip.ends[-1]
    begins = [begin for _, begin in strip.groups]
    sizes = [after - begin for begin, after in zip(begins, [*begins[1:], total], strict=True)]
    names = [name if size / total >= _LEAST_SHARE else "" for (name, _), size in zip(strip.groups, sizes, strict=True)]
    return {
        "tickmode": "array", "tickvals": begins, "ticktext": [f" {name}" for name in names],
        "gridcolor": "@soft", "griddash": "dot", "tickangle": 0, "ticks": "outside",
        "ticklabelposition": "outside right",
    }  # fmt: skip
