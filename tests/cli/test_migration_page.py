"""`docs/migration.md`: every name of ours that its tables give is one."""

import re
from pathlib import Path

import pytest
import typer

from ectype.cli.main import app
from ectype.recipe.parse import field_names
from ectype.recipe.placement import Placement
from ectype.recipe.spec import Recipe

PAGE = Path(__file__).resolve().parents[2] / "docs/migration.md"
COMMAND = typer.main.get_command(app)


def rows():
    """Heading, and the cells of each row below it."""
    heading, found = "", []
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("| ") and "---" not in line and not re.match(r"\| (MaxText|there) \|", line):
            found.append((heading, [cell.strip() for cell in line.strip("|").split("|")]))
    return found


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def fault(heading, name):
    """What is wrong with a name of ours; None where it is one."""
    if name.startswith("ectype "):
        return _fault_of_command(name.split()[1:])
    known = {"recipe fields": Recipe, "placement fields": Placement}.get(heading.rpartition(": ")[2])
    field = name.split(": ")[0]
    if known is None or field not in field_names(known):
        return f"{name}: no field below {heading!r}"
    return None


def _fault_of_command(words):
    command = COMMAND
    for word in words:
        if word.startswith("--"):
            if word not in {flag for option in command.params for flag in option.opts}:
                return f"{' '.join(words)}: no such flag"
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        else:
            return f"{' '.join(words)}: no such verb"
    return None


def test_every_row_has_three_cells_and_names_something_of_ours():
    assert len(rows()) > 60
    for heading, cells in rows():
        assert len(cells) == 3, cells
        assert names(cells[1]), (heading, cells)


@pytest.mark.parametrize(("heading", "cells"), rows(), ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_name_of_ours_exists(heading, cells):
    assert [fault(heading, name) for name in names(cells[1]) if fault(heading, name)] == []
    # Commands may stand in the last column, too.
    commands = [name for name in names(cells[2]) if name.startswith("ectype ")]
    assert [fault(heading, name) for name in commands if fault(heading, name)] == []


def test_the_check_knows_a_wrong_name():
    assert fault("What is computed: recipe fields", "model.d_modle")
    assert fault("Where it runs: placement fields", "model.d_model")
    assert fault("Flags", "ectype train --wieghts")
    assert fault("Flags", "ectype trian --run")
    assert fault("Flags", "--run")


def test_every_recipe_section_and_every_placement_field_that_maxtext_knows_is_there():
    """Nothing of ours that a MaxText setting decides was forgotten: whole sections are named."""
    named = {name.split(".")[0] for _, cells in rows() for name in names(cells[1])}
    ours = {"name", "description", "landmarks", "evaluation"}
    assert set(Recipe.model_fields) - ours <= named
    own = {"name", "description", "chip", "devices", "gather_stages", "evaluation_batch_windows", "phase_limit_seconds"}
    assert set(Placement.model_fields) - own <= named


def test_names_of_kept_activations_are_the_placements():
    from typing import get_args

    from ectype.recipe.placement import Activation

    [cells] = [cells for _, cells in rows() if cells[0].startswith("`decoder_layer_input`")]
    assert set(names(cells[2])) <= set(get_args(Activation))
    assert len(names(cells[2])) == len(names(cells[0]))


def test_environment_names_of_the_case_study_are_read():
    launch = COMMAND.commands["launch"].commands["xpk"].commands["submit"]
    variables = [option.envvar for verb in (COMMAND.commands["train"], launch) for option in verb.params]
    read = {name for given in variables for name in ([given] if isinstance(given, str) else given or ())}
    said = {name for _, cells in rows() for name in names(cells[0]) if re.match(r"XPK_|OLMO_INDEX|LOAD_PARAM", name)}
    assert len(said) >= 10
    assert said <= read
