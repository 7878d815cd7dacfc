"""The report in headless Chromium: every plot is drawn, nothing is fetched, keys reach every control, it prints."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Page, chromium_page, find_chromium

from ectype.compare.runner import compare_run
from ectype.compare.twins import no_noise
from ectype.data.audit import Audit, EpochCount, PassCoverage, StretchCount
from ectype.data.audit_record import audit_record, write_audit
from ectype.recipe.reference import load_reference
from ectype.report.build import write_report
from ectype.run.manifest import read_manifest

LOOKS = {"light": {}, "narrow": {"width": 400}, "narrow and dark": {"width": 340, "dark": True}, "dark": {"dark": True}}
PLOTS = {"training", "domain-loss", "domain-difference", "kl-landmarks", "kl-distribution", "coverage", "coverage-map"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a Chromium."""
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium on this machine")
    with chromium_page(executable, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def report(run_dir: Path) -> Path:
    """A report with a verdict and an audit, so that all plots are in it."""
    compare_run(run_dir, load_reference("package:demo/bundle"), no_noise())
    stretches = tuple(
        StretchCount(f"{name}.npy", name, 1, (100, 100), once, twice)
        for name, once, twice in (("kjv", (100, 90), (0, 10)), ("pycode", (50, 0), (0, 0)))
    )
    audit = Audit(640, [EpochCount(0, 1, 400, 640, read_once=240, read_twice=10, unread=150)])
    audit.coverage = [PassCoverage(0, 1, stretches)]
    write_audit(run_dir, audit_record(audit, read_manifest(run_dir).index_fingerprint))
    return write_report(run_dir)


@pytest.fixture
def opened(page: Page, report: Path) -> Page:
    """The report as it opens, in light colours; opened again only where a test left it otherwise."""
    page.open(report, again=False)
    page.value("document.querySelectorAll('[data-view=raw], [data-go]').forEach((b, n) => n < 2 && b.click()); 0")
    return page


@pytest.mark.parametrize("look", LOOKS)
def test_all_plots_are_drawn_whole_the_console_is_silent_and_nothing_is_fetched(
    page: Page, report: Path, look: str
) -> None:
    page.open(report, **LOOKS[look])
    drawn = page.value(
        "[...document.querySelectorAll('[data-figure]')].filter((place) => place.querySelector('.main-svg'))"
        ".map((place) => place.dataset.figure)"
    )
    assert set(drawn) == PLOTS
    assert page.value("document.documentElement.dataset.drawn") == str(len(PLOTS))
    assert page.messages == []
    assert [url for url in page.requested if not url.startswith(("data:", "blob:"))] == [report.as_uri()]

    cut = page.value(
        """[...document.querySelectorAll("[data-figure]")].flatMap((place) => {
          const frame = place.getBoundingClientRect();
          return [...place.querySelectorAll("svg text")].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.width > 0 && (box.left < frame.left - 1 || box.right > frame.right + 1
              || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
          }).map((text) => `${place.dataset.figure}: ${text.textContent}`);
        })"""
    )
    assert cut == []
    assert page.value("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_every_link_leads_to_its_section(opened: Page) -> None:
    page = opened
    page.value("document.documentElement.style.scrollBehavior = 'auto'; 0")
    anchors = page.value("[...document.querySelectorAll('nav a')].map((link) => link.getAttribute('href'))")
    assert len(anchors) >= 8
    bottom = page.value("document.documentElement.scrollHeight - innerHeight")
    for anchor in anchors:
        page.value(f"document.querySelector('nav a[href=\"{anchor}\"]').click(); 0")
        assert page.value("location.hash") == anchor
        top = page.value(f"document.querySelector('{anchor}').getBoundingClientRect().top")
        assert abs(top) < 100 or page.value("scrollY") >= bottom - 1, anchor


def test_the_tab_key_reaches_every_control(opened: Page) -> None:
    page = opened
    page.value(
        "document.querySelectorAll('a, button, input, summary, [tabindex=\"0\"]')"
        ".forEach((each, place) => { each.dataset.place = String(place); }); 0"
    )
    places = set(page.value("[...document.querySelectorAll('[data-place]')].map((each) => each.dataset.place)"))
    folded = set(page.value("[...document.querySelectorAll('details:not([open]) [data-place]:not(summary)')]"
                            ".map((each) => each.dataset.place)"))  # fmt: skip
    reached = set()
    for _ in range(len(places) + 2):
        page.press("Tab")
        reached.add(page.value("document.activeElement?.dataset.place ?? ''"))
    assert places - folded <= reached
    assert len(places - folded) > 25


def test_keys_change_the_view_and_the_range_of_updates_in_all_plots_over_them(opened: Page) -> None:
    page = opened
    visible = "document.querySelector('[data-figure=training]').data.filter((t) => t.visible).map((t) => t.name)"
    assert page.value(visible)[:2] == ["reference", "ours"]
    page.value("document.querySelector('[data-view=smoothed]').focus(); 0")
    page.press("Enter", "\r")
    assert page.value(visible)[0] == "reference, mean of 20"
    assert page.value("document.querySelector('[data-view=smoothed]').getAttribute('aria-pressed')") == "true"
    assert page.value("document.querySelector('[data-view=raw]').getAttribute('aria-pressed')") == "false"
    ranges = (
        "['training', 'domain-loss'].map((name) => document.querySelector(`[data-figure=${name}]`)"
        "._fullLayout.xaxis.range.map(Math.round))"
    )
    for end, typed in (("from", "100"), ("to", "200")):
        field = f"document.querySelector('[data-end={end}]')"
        page.value(f"{field}.focus(); {field}.select(); 0")
        for digit in typed:
            page.press(digit, digit)
        page.press("Enter", "\r")
    assert page.value(ranges) == [[100, 200], [100, 200]]
    page.value("document.querySelector('[data-move=in]').focus(); 0")
    page.press(" ", " ")
    assert page.value(ranges) == [[125, 175], [125, 175]]
    page.scheme(True)
    page.value("new Promise((done) => setTimeout(done, 300))")
    assert page.value(ranges) == [[125, 175], [125, 175]], "a change of theme keeps what the reader chose"
    assert page.value(visible)[0] == "reference, mean of 20"
    page.value("document.querySelector('[data-go]').click(); 0")
    assert page.value("document.querySelector('[data-end=to]').value") == "640"
    assert page.messages == []


def test_dragging_in_one_plot_moves_the_others_and_the_fields(opened: Page) -> None:
    page = opened
    page.value(
        "Plotly.relayout(document.querySelector('[data-figure=domain-loss]'), {'xaxis.range': [50, 90]}).then(() => 0)"
    )
    page.value("new Promise((done) => setTimeout(done, 200))")
    assert page.value("document.querySelector('[data-figure=training]')._fullLayout.xaxis.range") == [50, 90]
    assert page.value("[...document.querySelectorAll('[data-end]')].map((field) => field.value)") == ["50", "90"]


def test_the_report_prints_with_its_plots(page: Page, report: Path) -> None:
    page.open(report, dark=True)
    whole = page.pdf()
    page.value("document.querySelectorAll('.canvas').forEach((place) => { place.innerHTML = ''; }); 0")
    bare = page.pdf()
    assert whole.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", whole)) >= 4
    assert _strokes(whole) > _strokes(bare) + 3000, "the plots are lines on paper"
    assert page.messages == []


def _strokes(pdf: bytes) -> int:
    """Straight and curved pieces of lines on all pages."""
    streams = re.findall(rb"/FlateDecode[^>]*>>\s*stream\r?\n(.*?)endstream", pdf, re.DOTALL)
    return sum(len(re.findall(rb"[\d.] [lc]\n", _inflated(stream))) for stream in streams)


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(stream)
    except zlib.error:
        return b""
