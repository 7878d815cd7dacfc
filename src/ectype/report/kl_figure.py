"""The distribution of per-token KL: one strip per landmark, its mean, median, 99th percentile and maximum marked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ectype.report.strokes import Figure, axis_of, line_trace, ramp

MOST_STRIPS = 8
_STRIP_PIXELS = 96
_GAP = 0.28
"""Of a strip, empty above it."""
_MARKS = (
    ("median", "circle", "@three"), ("mean", "diamond", "@two"), ("99th percentile", "triangle-up", "@four"),
    ("largest", "x", "@six"),
)  # fmt: skip


@dataclass(frozen=True)
class Strip:
    """One landmark: shares of tokens by bin of log10 KL, and levels in nats, NaN where there is none."""

    step: int
    shares: Sequence[float]
    levels: Mapping[str, float]
    """By the names of `_MARKS`."""


def drawn_strips(strips: Sequence[Strip]) -> list[Strip]:
    """The strips that a plot has room for: all, or `MOST_STRIPS` of them, evenly spread, first and last included."""
    if len(strips) <= MOST_STRIPS:
        return list(strips)
    return [strips[round(place * (len(strips) - 1) / (MOST_STRIPS - 1))] for place in range(MOST_STRIPS)]


def kl_distribution(strips: Sequence[Strip], log10_lowest: float, bins_per_decade: int) -> Figure:
    """Filled outlines of the shares, one below another over one logarithmic axis; each level a stem with its own mark.

    Args:
        strips: in order of updates.
        log10_lowest: log10 of the first bin's lower edge, in nats.
        bins_per_decade: bins are of equal width in log10.
    """
    filled = [place for strip in strips for place, share in enumerate(strip.shares) if share > 0]
    first, last = (max(0, min(filled) - 1), max(filled) + 2) if filled else (0, 0)
    data, layout = [], _layout(len(strips))
    for place, strip in enumerate(strips):
        axis = "y" if place == 0 else f"y{place + 1}"
        shares = list(strip.shares)[first:last]
        edges = [10.0 ** (log10_lowest + (first + bin_) / bins_per_decade) for bin_ in range(len(shares))]
        role = ramp(place, len(strips))
        outline = line_trace(edges, shares, f"update {strip.step:,}", role, 1.6, axis=axis, number_format=".2%")
        outline["line"]["shape"] = "hv"
        data.append(outline | {"fill": "tozeroy", "fillcolor": "@band", "showlegend": False})
        data += [_stem(strip, *mark, axis=axis, peak=max(shares, default=0.0), named=place == 0) for mark in _MARKS]
        note = {"text": f"<b>update {strip.step:,}</b>", "showarrow": False, "font": {"size": 12}}
        layout["annotations"].append(
            note | {"xref": "paper", "yref": f"{axis} domain", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}
        )
    return {"data": data, "layout": layout}


def _stem(strip: Strip, name: str, symbol: str, role: str, *, axis: str, peak: float, named: bool) -> Figure:
    level = strip.levels[name]
    x = [level, level] if level > 0 else [None, None]
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "legendgroup": name, "showlegend": named,
        "x": x, "y": [peak, 0], "yaxis": axis, "line": {"color": role, "width": 1.5, "dash": "dot"},
        "marker": {"symbol": symbol, "size": [11, 0], "color": role, "line": {"color": "@surface", "width": 1}},
        "hovertemplate": "%{x:.3e} nats<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _layout(strips: int) -> Figure:
    bottom = f"y{strips}" if strips > 1 else "y"
    layout: Figure = {
        "height": 105 + _STRIP_PIXELS * max(1, strips),
        "hovermode": "closest",
        "xaxis": axis_of("per-token KL, nats", log=True) | {"anchor": bottom},
        "annotations": [],
    }
    for place in range(strips):
        low = 1 - (place + 1) / strips
        name = "yaxis" if place == 0 else f"yaxis{place + 1}"
        domain = [low, low + (1 - _GAP) / strips]
        layout[name] = axis_of("", percent=True) | {"domain": domain, "nticks": 3, "tickfont": {"size": 11}}
    return layout
