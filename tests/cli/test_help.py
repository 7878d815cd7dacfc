"""What `ectype --help` and every verb's `--help` promise: an example, `--json`, and no heavy import."""

import resource
import subprocess
import sys
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ectype.cli.main import app

HEAVY = ("jax", "flax", "optax", "orbax", "grain", "numpy", "torch", "transformers", "plotly", "pydantic")


def _verbs(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command that does work, by the words that call it."""
    children = getattr(command, "commands", {})
    found = {} if children and not command.invoke_without_command else {path: command}
    for name, child in children.items():
        found |= _verbs(child, (*path, name))
    return found


VERBS = _verbs(typer.main.get_command(app))


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_help_ends_with_an_example_of_the_verb(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert result.exit_code == 0
    assert f"Example: ectype {' '.join(words)}" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "group", [(), ("weights",), ("data",), ("recipes",)], ids=lambda words: " ".join(words) or "all"
)
def test_the_list_of_verbs_cuts_no_sentence_short(group: tuple[str, ...]) -> None:
    listed = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    assert "Commands:" in listed
    assert "..." not in listed.split("Commands:")[1]


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_arguments_are_named_in_capitals_and_explained(words: tuple[str, ...]) -> None:
    for parameter in VERBS[words].params:
        if parameter.param_type_name == "argument":
            assert (parameter.metavar or "").isupper(), parameter.name
            assert parameter.help


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_takes_json(words: tuple[str, ...]) -> None:
    options = {option for parameter in VERBS[words].params for option in parameter.opts}
    assert "--json" in options


def test_help_loads_no_numerical_library() -> None:
    code = (
        "import sys, typer.testing, ectype.cli.main as main\n"
        "assert typer.testing.CliRunner().invoke(main.app, ['--help']).exit_code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_answers_in_under_four_tenths_of_a_second() -> None:
    """Processor time, which is what it takes on an idle machine: other work on this one must not fail the test."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "ectype.cli", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.4


def test_no_verb_at_all_shows_the_help() -> None:
    result = CliRunner().invoke(app, [])
    assert "Usage: " in result.output
