"""The report's plots as Plotly figure data: numbers in, plain dictionaries out.

A colour is a role such as "@ours"; the page's script replaces it with the colour of the theme in force.
"""

from collections.abc import Mapping, Sequence

from ectype.report.strokes import (
    DOMAIN_ROLES,
    LINKED,
    Figure,
    axis_of,
    landmark_axis,
    level_shape,
    line_trace,
    marker,
    numbers,
    steps_axis,
)  # fmt: skip


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
                "marker": marker(place),
                "hovertemplate": "update %{customdata}: %{y:.2e} nats<extra>%{fullData.name}</extra>",
            }
        )
    layout: Figure = {
        "height": 380,
        "hovermode": "closest",
        "xaxis": landmark_axis(names),
        "yaxis": axis_of("ours − reference, nats") | {"zeroline": True, "exponentformat": "power"},
    }
    if tolerance_nats is not None:
        layout["shapes"] = [level_shape(sign * tolerance_nats, "y") for sign in (1, -1)]
    return {"data": data, "layout": layout}


def held_out_loss(
    steps: Sequence[int], ours: Mapping[str, Sequence[float]], reference: Mapping[str, Sequence[float]]
) -> Figure:
    """Held-out loss by domain over the landmarks: ours as a marked line, the reference as a broad band below it."""
    data = []
    for place, domain in enumerate(ours):
        role = DOMAIN_ROLES[place % 6]
        band = line_trace(steps, reference[domain], f"{domain}, reference", role, 9)
        line = line_trace(steps, ours[domain], domain, role, 1.8) | {"mode": "lines+markers", "marker": marker(place)}
        data += [
            band | {"opacity": 0.28, "showlegend": False, "legendgroup": domain},
            line | {"legendgroup": domain},
        ]
    layout = {"height": 420, "meta": LINKED, "xaxis": steps_axis(), "yaxis": axis_of("nats per token")}
    return {"data": data, "layout": layout}


def kl_by_landmark(steps: Sequence[int], levels: Mapping[str, Sequence[float]], tolerance_nats: float | None) -> Figure:
    """Token KL at each landmark on a logarithmic axis: one line per level (mean, 99th percentile, largest)."""
    names = [f"{step:,}" for step in steps]
    places = list(range(len(steps)))
    dashes = ("solid", "dash", "dot")
    data = []
    for place, (level, values) in enumerate(levels.items()):
        positive = [value if value > 0 else float("nan") for value in values]
        line = line_trace(places, positive, level, DOMAIN_ROLES[place], 2, dash=dashes[place % 3], number_format=".2e")
        data.append(line | {"mode": "lines+markers", "marker": marker(place)})
    if tolerance_nats is not None and places:
        ends = [places[0] - 0.4, places[-1] + 0.4]
        data.append(line_trace(ends, [tolerance_nats] * 2, "tolerance of the mean", "@tolerance", 1.5, dash="dash"))
    layout = {"height": 380, "xaxis": landmark_axis(names), "yaxis": axis_of("KL, nats per token", log=True)}
    return {"data": data, "layout": layout}


def coverage(passes: Sequence[str], windows_by_fate: Mapping[str, Sequence[int]]) -> Figure:
    """For each pass over the corpus, its windows by what became of them, as bars laid end to end."""
    roles = ("@one", "@two", "@four", "@bare", "@bare-faint")
    patterns = ("", "x", "\\", "/", ".")
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": times,
            "y": list(passes),
            "x": list(counts),
            "marker": {
                "color": roles[place % 5],
                "line": {"color": "@surface", "width": 1},
                "pattern": {
                    "shape": patterns[place % 5],
                    "fgcolor": roles[place % 5],
                    "bgcolor": "@surface",
                    "size": 7,
                    "solidity": 0.5,
                },
            },
            "hovertemplate": "%{y}: %{x:,} windows<extra>%{fullData.name}</extra>",
        }
        for place, (times, counts) in enumerate(windows_by_fate.items())
    ]
    layout = {
        "height": 150 + 40 * len(passes),
        "barmode": "stack",
        "legend": {"traceorder": "normal"},
        "hovermode": "closest",
        "xaxis": axis_of("windows"),
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
        "xaxis": axis_of("seconds a step"), "yaxis": hidden, "xaxis2": axis_of("GB a device"), "yaxis2": hidden,
    }  # fmt: skip
    return {"data": data, "layout": layout}
