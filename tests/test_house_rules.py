"""Sizes and wording that every source file keeps to."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
HIDDEN_WORK = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error"]))
SKIPPED_TESTS = re.compile(r"mark\.(" + "xfail" + r"|" + "skip" + r")\b")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MOST_LINES_OF_A_FILE
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION} == {}


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_modules_and_public_functions_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if path.name != "__init__.py" or tree.body:
        assert ast.get_docstring(tree), "no module docstring"
    public = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=_name)
def test_nothing_is_left_for_later(path: Path) -> None:
    text = path.read_text()
    assert HIDDEN_WORK.findall(text) == []
    assert SKIPPED_TESTS.findall(text) == []
