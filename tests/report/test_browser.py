"""The report in headless Chromium: every plot is drawn, nothing is fetched, the console stays silent."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ectype.compare.runner import compare_run
from ectype.compare.twins import no_noise
from ectype.recipe.reference import load_reference
from ectype.report.build import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
    "--virtual-time-budget=8000",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> str:
    """Path of a Chromium."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip("no Chromium on this machine")
    return found


@pytest.fixture(scope="module")
def report(run_dir: Path) -> Path:
    """A report with a verdict."""
    compare_run(run_dir, load_reference("package:demo/bundle"), no_noise())
    return write_report(run_dir)


@pytest.mark.parametrize("flags", [(), ("--blink-settings=preferredColorScheme=0",), ("--window-size=420,900",)])
def test_all_plots_are_drawn_and_the_console_is_silent(
    browser: str, report: Path, flags: tuple[str, ...], tmp_path: Path
) -> None:
    command = [browser, *QUIET, *flags, f"--user-data-dir={tmp_path}", "--dump-dom", report.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    page = done.stdout
    places = len(re.findall(r"data-figure=", page.split("<script")[0]))
    assert f'data-drawn="{places}"' in page[:500]
    assert page.count('class="main-svg"') >= places
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []


def test_the_report_prints(browser: str, report: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.pdf"
    command = [browser, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={out}", report.as_uri()]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    assert out.read_bytes().startswith(b"%PDF")
    assert out.stat().st_size > 50_000
