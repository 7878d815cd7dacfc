"""Plots: what is drawn is what was measured, long series keep their extremes, colours are roles of the style sheet."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import ectype.report
from ectype.report import figures

STYLE = (Path(ectype.report.__file__).parent / "style.css").read_text()


def _roles(value: Any) -> set[str]:
    return set(re.findall(r'"@([a-z0-9-]+)"', json.dumps(value)))


def test_short_series_are_drawn_whole() -> None:
    assert figures.thinned(np.arange(10.0), most_points=10).tolist() == list(range(10))


def test_long_series_keep_their_extremes_their_ends_and_their_bound() -> None:
    generator = np.random.default_rng(0)
    values = generator.standard_normal(100_000)
    values[[12_345, 67_890]] = 50.0, -50.0
    values[5] = np.nan
    other = np.zeros(100_000)
    other[54_321] = 1e-3
    kept = figures.thinned(values, other)
    assert len(kept) <= figures.MOST_POINTS
    assert {0, 12_345, 67_890, 54_321, 99_999} <= set(kept.tolist())
    assert np.all(np.diff(kept) > 0)


def test_training_loss_draws_both_logs_and_their_difference() -> None:
    steps = np.arange(1, 6)
    reference = np.array([5.0, 4.0, 3.0, 2.5, 2.0])
    ours = reference + np.array([1e-6, 0.0, -3e-6, 2e-6, 1e-6])
    figure = figures.training_loss(steps, ours, reference, figures.Limit("tolerance", 1e-5), [0, 5])
    drawn = {line["name"]: line["y"] for line in figure["data"]}
    assert drawn["ours"] == ours.tolist()
    assert drawn["reference"] == reference.tolist()
    np.testing.assert_allclose(drawn["|ours − reference|"][2], 3e-6, rtol=1e-6)
    assert drawn["|ours − reference|"][1] is None, "zero has no place on a logarithmic axis"
    assert drawn["tolerance"] == [1e-5, 1e-5]
    json.dumps(figure, allow_nan=False)


def test_the_tolerance_of_an_update_ends_at_the_horizon() -> None:
    figure = figures.training_loss(
        np.arange(1, 101), np.ones(100), np.zeros(100), figures.Limit("tolerance", 1e-5), [], 42
    )
    tolerance = next(line for line in figure["data"] if line["name"] == "tolerance")
    assert tolerance["x"] == [1.0, 42.0]
    assert [note["x"] for note in figure["layout"]["annotations"]] == [42]


def test_numbers_that_are_not_finite_leave_gaps() -> None:
    figure = figures.training_loss(np.arange(1, 4), np.array([1.0, np.nan, np.inf]), None, None, [])
    assert figure["data"][0]["y"] == [1.0, None, None]


def test_every_colour_is_defined_in_both_themes() -> None:
    shares = {step: [0.0, 0.5, 0.5, 0.0] for step in range(9)}
    domains = {f"domain {place}": [1.0, 2.0] for place in range(8)}
    every = [
        figures.training_loss(np.arange(1, 4), np.ones(3), np.ones(3), figures.Limit("tolerance", 1e-5), [1]),
        figures.held_out_difference([0, 1], domains, 1e-5),
        figures.held_out_loss([0, 1], domains, domains),
        figures.kl_by_landmark([0, 1], {"mean": [1e-9, 0.0], "largest": [1e-3, 1e-2]}, 1e-6),
        figures.kl_distribution(shares, -14.0, 10),
        figures.coverage(["a"], {"not read": [1], "once": [2], "twice": [3], "more often": [0]}),
    ]
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    for role in _roles(every):
        assert f"--{role}:" in light, role
        assert f"--{role}:" in dark, role


def test_the_distribution_of_kl_is_cut_to_where_tokens_are() -> None:
    figure = figures.kl_distribution({0: [0.0] * 50 + [1.0] + [0.0] * 109}, -14.0, 10)
    x = figure["data"][0]["x"]
    assert len(x) == 3
    np.testing.assert_allclose(x[1], 1e-9)


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
