"""What `ectype train` says first where several things are wrong."""

from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ectype.cli.main import app
from ectype.recipe.load import load_recipe, recipe_hash, to_yaml
from ectype.run.manifest import write_manifest


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


def test_an_end_beyond_the_recipes_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["train", "toy-calm", "--run", str(tmp_path / "run"), "--until", "641"])
    assert refused.exit_code == 2
    assert "--until 641" in refused.output
    assert "at most 640" in refused.output
    assert not (tmp_path / "run").exists()


def test_another_recipe_is_told_of_before_the_runs_data_is_read_by_it(tmp_path: Path, make_manifest: Any) -> None:
    """The run's index would be opened with the other recipe's type and vocabulary."""
    run, mine = tmp_path / "run", load_recipe("toy-calm")
    run.mkdir()
    (run / "recipe.yaml").write_text(to_yaml(mine))
    write_manifest(run, make_manifest(recipe_hash=recipe_hash(mine)))
    other = ["train", "olmo3-7b-stage1", "--run", str(run), "--placement", "cpu-one"]
    refused = CliRunner().invoke(app, other)
    assert refused.exit_code == 2
    assert "recipe" in refused.output
    assert "uint16" not in refused.output
