"""Plots: what is drawn is what was measured, long series keep their extremes, colours are roles of the style sheet."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import ectype.report
from ectype.compare.overlay import Band, deviation_band
from ectype.compare.trajectory import Differences
from ectype.report import figures, strokes
from ectype.report.coverage_figure import Area, coverage_map
from ectype.report.coverage_figure import Strip as PassStrip
from ectype.report.kl_figure import MOST_STRIPS, Strip, drawn_strips, kl_distribution
from ectype.report.overlay_figure import Limit, Mark, own_loss, training_loss

STYLE = (Path(ectype.report.__file__).parent / "style.css").read_text()


def _roles(value: Any) -> set[str]:
    return set(re.findall(r'"@([a-z0-9-]+)"', json.dumps(value)))


def test_short_series_are_drawn_whole() -> None:
    assert strokes.thinned(np.arange(10.0), most_points=10).tolist() == list(range(10))


def test_long_series_keep_their_extremes_their_ends_and_their_bound() -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal(100_000)
    values[[12_345, 67_890]] = 50.0, -50.0
    values[5] = np.nan
    other = np.zeros(100_000)
    other[54_321] = 1e-3
    kept = strokes.thinned(values, other)
    assert len(kept) <= strokes.MOST_POINTS
    assert {0, 12_345, 67_890, 54_321, 99_999} <= set(kept.tolist())
    assert np.all(np.diff(kept) > 0)


NO_BAND = Band(np.empty(0, np.int64), np.empty(0), np.empty(0))
LEVELS = {"mean": 2e-9, "median": 1e-9, "99th percentile": 1e-8, "largest": 3e-8}


def test_training_loss_draws_both_logs_and_their_difference() -> None:
    steps = np.arange(1, 6)
    reference = np.array([5.0, 4.0, 3.0, 2.5, 2.0])
    ours = reference + np.array([1e-6, 0.0, -3e-6, 2e-6, 1e-6])
    figure = training_loss(steps, ours, reference, NO_BAND, Limit("tolerance", 1e-5), [0, 5])
    drawn = {line["name"]: line["y"] for line in figure["data"]}
    assert drawn["ours"] == ours.tolist()
    assert drawn["reference"] == reference.tolist()
    np.testing.assert_allclose(drawn["|ours − reference|"][2], 3e-6, rtol=1e-6)
    assert drawn["|ours − reference|"][1] is None, "zero has no place on a logarithmic axis"
    assert drawn["tolerance"] == [1e-5, 1e-5]
    json.dumps(figure, allow_nan=False)


def test_trailing_means_and_their_band_are_drawn_when_asked_for() -> None:
    steps = np.arange(1, 321)
    reference = 3 + np.cos(steps / 9)
    difference = 1e-6 * np.sin(steps)
    none = np.empty(0, np.int64)
    differences = Differences(steps, difference, None, None, 0, (none, none))
    band = deviation_band(differences, 320)
    figure = training_loss(steps, reference + difference, reference, band, Limit("tolerance", 1e-5), [], (), 4e-6)
    drawn = {line["name"]: line for line in figure["data"]}
    width = 10
    assert {name for name, line in drawn.items() if line["meta"]["view"] == "smoothed"} == {
        "reference, mean of 10", "ours, mean of 10", "deviation band", "|mean difference of 10|",
        "tolerance of the mean",
    }  # fmt: skip
    assert all((line.get("visible") is False) == (line["meta"]["view"] == "smoothed") for line in drawn.values())
    last = float(np.mean(difference[-width:]))
    np.testing.assert_allclose(drawn["|mean difference of 10|"]["y"][-1], abs(last), rtol=1e-6)
    np.testing.assert_allclose(drawn["ours, mean of 10"]["y"][0], np.mean((reference + difference)[:width]))
    np.testing.assert_allclose(drawn["deviation band"]["y"], band.half_width)
    assert drawn["tolerance of the mean"]["y"] == [4e-6, 4e-6]


def test_departures_and_the_horizon_are_marked_and_noted() -> None:
    limit = Limit("tolerance", 1e-5)
    figure = training_loss(
        np.arange(1, 101),
        np.ones(100),
        np.zeros(100),
        NO_BAND,
        limit,
        [],
        (Mark(90, "mean leaves the band, 90"),),
        None,
        42,
    )
    tolerance = next(line for line in figure["data"] if line["name"] == "tolerance")
    assert tolerance["x"] == [1.0, 42.0]
    notes = figure["layout"]["annotations"]
    assert [(note["x"], note["text"].strip(), note["xanchor"]) for note in notes] == [
        (90, "mean leaves the band, 90", "right"), (42, "horizon", "left"),
    ]  # fmt: skip
    assert notes[0]["y"] != notes[1]["y"], "notes do not cover each other"
    assert {shape["x0"] for shape in figure["layout"]["shapes"]} == {42, 90}


def test_numbers_that_are_not_finite_leave_gaps() -> None:
    figure = own_loss(np.arange(1, 4), np.array([1.0, np.nan, np.inf]))
    assert figure["data"][0]["y"] == [1.0, None, None]


def test_every_colour_is_defined_in_both_themes() -> None:
    shares = {step: [0.0, 0.5, 0.5, 0.0] for step in range(9)}
    band = Band(np.array([2, 3]), np.array([0.5, 0.5]), np.ones(2))
    domains = {f"domain {place}": [1.0, 2.0] for place in range(8)}
    every = [
        training_loss(np.arange(1, 4), np.ones(3), np.ones(3), band, Limit("tolerance", 1e-5), [1], (), 1.0),
        figures.held_out_difference([0, 1], domains, 1e-5),
        figures.held_out_loss([0, 1], domains, domains),
        figures.kl_by_landmark([0, 1], {"mean": [1e-9, 0.0], "largest": [1e-3, 1e-2]}, 1e-6),
        kl_distribution([Strip(step, shares[step], LEVELS) for step in shares], -14.0, 10),
        coverage_map([_pass()]),
        figures.coverage(["a"], {"not read": [1], "once": [2], "twice": [3], "more often": [0]}),
    ]
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    for role in _roles(every):
        assert f"--{role}:" in light, role
        assert f"--{role}:" in dark, role


def test_the_distribution_of_kl_is_cut_to_where_tokens_are() -> None:
    figure = kl_distribution([Strip(0, [0.0] * 50 + [1.0] + [0.0] * 109, LEVELS)], -14.0, 10)
    x = figure["data"][0]["x"]
    assert len(x) == 3
    np.testing.assert_allclose(x[1], 1e-9)


def test_the_distribution_marks_mean_median_99_per_cent_and_largest_by_shape() -> None:
    strips = [Strip(step, [0.0, 0.25, 0.75], LEVELS | {"largest": 0.0}) for step in (80, 240)]
    figure = kl_distribution(strips, -14.0, 10)
    stems = [line for line in figure["data"] if line["mode"] == "lines+markers"]
    assert len(stems) == 8
    for stem in stems:
        wanted = LEVELS[stem["name"]] if stem["name"] != "largest" else None
        assert stem["x"] == [wanted, wanted], "what is zero has no place on a logarithmic axis"
        assert stem["y"] == [0.75, 0]
    assert len({stem["marker"]["symbol"] for stem in stems}) == 4
    assert sum(stem["showlegend"] for stem in stems) == 4
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["<b>update 80</b>", "<b>update 240</b>"]


def test_of_many_landmarks_some_are_drawn_with_the_first_and_the_last() -> None:
    strips = [Strip(step, [], LEVELS) for step in range(31)]
    drawn = [strip.step for strip in drawn_strips(strips)]
    assert len(drawn) == MOST_STRIPS
    assert (drawn[0], drawn[-1]) == (0, 30)
    assert drawn == sorted(set(drawn))
    assert drawn_strips(strips[:3]) == strips[:3]


def _pass() -> PassStrip:
    areas = (Area("read once", [1.0, 0.5]), Area("more than once", [0.0, 0.25]), Area("unread", [0.0, 0.25]))
    return PassStrip("pass 1", [0, 60, 100], areas, [("kjv", 0), ("tz", 60)])


def test_the_map_of_the_corpus_tells_kinds_apart_by_pattern() -> None:
    figure = coverage_map([_pass()])
    once, twice, unread = figure["data"]
    assert (once["x"], once["y"], once["line"]["shape"]) == ([0, 60, 100], [1.0, 0.5, 0.5], "hv")
    assert twice["y"] == [0.0, 0.25, 0.25]
    assert twice["fillpattern"]["shape"] != unread["fillpattern"]["shape"]
    assert "fillpattern" not in once
    assert len({area["stackgroup"] for area in figure["data"]}) == 1
    axis = figure["layout"]["xaxis"]
    assert (axis["tickvals"], [name.strip() for name in axis["ticktext"]]) == ([0, 60], ["kjv", "tz"])


def test_contrast_of_text_and_lines_with_their_ground() -> None:
    """WCAG 2: text at least 4.5 to 1, lines and marks at least 3 to 1 on the cards that hold them."""
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    for sheet in (light, dark):
        colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", sheet))
        for name in ("ink", "soft", "link", "good", "bad", "open"):
            assert _contrast(colours[name], colours["surface"]) >= 4.5, name
        for name in ("good", "bad", "open", "none"):
            assert _contrast(colours[name], colours[f"{name}-tint"]) >= 4.5, name
        for name in ("ours", "difference", "tolerance", "one", "two", "three", "four", "five", "six"):
            assert _contrast(colours[name], colours["surface"]) >= 3, name


def _contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)
