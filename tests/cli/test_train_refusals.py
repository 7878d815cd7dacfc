"""What `ectype train` says first where several things are wrong."""

from pathlib import Path

from typer.testing import CliRunner

from ectype.cli.main import app


def test_an_absent_index_is_told_of_before_the_memory(tmp_path: Path) -> None:
    """No machine holds this batch; the path is what its user can mend first."""
    huge = ("--placement", "cpu-one", "--set", "data.global_batch_windows=1073741824")
    absent = tmp_path / "absent.json"
    command = ["train", "toy-calm", "--run", str(tmp_path / "run"), *huge]
    refused = CliRunner().invoke(app, [*command, "--index", str(absent)])
    assert refused.exit_code == 2
    assert str(absent) in refused.output
    assert "on a machine with" not in refused.output
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, "on a machine with" in refused.output) == (2, True)
    assert not (tmp_path / "run").exists()
