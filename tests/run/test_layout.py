"""One package knows where things lie in a run folder: the names are spelled nowhere else."""

import ast
import re
from pathlib import Path

import pytest

from ectype.errors import EctypeError
from ectype.run.paths import RunFolder

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "ectype"
NAMES = {"recipe.yaml", "run.json", "metrics.jsonl", "checkpoints", "ledger", "evaluations", "verdict.json"}
NAMES |= {"audit.json", "parity.json", "report.html", "twins", "against-run"}
IN_A_PATH = re.compile(r"step-\{|:08d|process-\{")


def _strings(tree: ast.AST) -> list[ast.Constant]:
    """String literals that are neither docstrings nor keys of a mapping."""
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
    keys += [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in keys
    ]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_file_spells_a_name_of_the_run_folder(path: Path) -> None:
    if path.parent.name == "run":
        return
    text = path.read_text()
    joined = [ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.JoinedStr)]
    assert [node.lineno for node in _strings(ast.parse(text)) if node.value in NAMES] == []
    assert [name for name in joined if IN_A_PATH.search(name)] == []


def test_the_layout_is_the_documented_one() -> None:
    run = RunFolder(Path("RUN"))
    assert run.checkpoint(640) == Path("RUN/checkpoints/00000640")
    assert run.evaluation(640) == Path("RUN/evaluations/step-00000640.json")
    assert run.process_ledger(3) == Path("RUN/ledger/process-00003.ledger")
    assert run.heartbeat(3) == Path("RUN/heartbeats/process-00003.json")
    assert run.twin(2).against_run(80) == Path("RUN/twins/2/against-run/step-00000080.json")


def test_the_folder_above_a_run_names_the_run_within(tmp_path: Path) -> None:
    """`ectype demo --out runs/demo` puts its run into runs/demo/run."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.recipe.write_text("")
    with pytest.raises(EctypeError, match="did you mean") as refused:
        RunFolder(tmp_path).require()
    assert f"did you mean {run.path}?" in str(refused.value)
    run.recipe.unlink()
    with pytest.raises(EctypeError, match=r"holds no recipe\.yaml") as refused:
        RunFolder(tmp_path).require()
    assert "did you mean" not in str(refused.value)
