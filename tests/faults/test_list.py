"""`ectype faults --list`."""

import json

from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.faults.catalogue import FAULTS


def test_the_list_names_every_fault_and_a_matrix_needs_a_folder():
    found = json.loads(CliRunner().invoke(app, ["faults", "--list", "--json"]).stdout)["faults"]
    assert [fault["name"] for fault in found] == [fault.name for fault in FAULTS]
    assert all(fault["title"] and fault["area"] for fault in found)
    refused = CliRunner().invoke(app, ["faults"])
    assert (refused.exit_code, "no OUT" in refused.stderr) == (2, True)
