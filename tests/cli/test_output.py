"""How a verb that is stopped ends: exit code 75, a line for people, and an object where one was asked for."""

import json
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from ectype.cli.output import JSON_OPTION, ProgressBar, verb
from ectype.errors import Stopped

app = typer.Typer()


@app.command()
@verb
def stop(json_output: Annotated[bool, JSON_OPTION] = False) -> None:
    """A verb that is asked to stop."""
    raise Stopped("after step 7")


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_stopped_verb_ends_in_75_and_prints_an_object_when_asked(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 75
    assert "stopped: after step 7" in result.stderr
    assert (json.loads(result.stdout) if result.stdout else None) == (
        {"stopped": "after step 7"} if arguments else None
    )


def test_work_of_a_few_seconds_prints_no_progress_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar() as progress:
        progress("train", 1, 640)
        progress("train", 640, 640)
    assert capsys.readouterr().err == ""


def test_a_line_where_no_terminal_is_says_how_long_it_takes_still(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the pace since the work was taken up, not since its first unit: a resumed one began in the middle."""
    seconds = iter((100.0, 100.0, 130.0, 131.0, 145.0))
    monkeypatch.setattr("ectype.cli.output.time.monotonic", lambda: next(seconds))
    with ProgressBar() as progress:
        for done in (320, 380, 381, 600):
            progress("train", done, 640)
    assert capsys.readouterr().err.splitlines() == [
        "train: 380/640, about 2:10 left",
        "train: 600/640, about 0:06 left",
    ]
