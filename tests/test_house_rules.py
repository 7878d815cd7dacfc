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
LOOP = "ectype.train.loop"
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


def _is_module(dotted: str) -> bool:
    path = ROOT / "src" / Path(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> list[str]:
    """Names of other modules of ectype that begin with an underscore: imported, taken of a module, or set in one."""
    found, modules = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.split(".")[0] == "ectype"]
            modules |= {alias.asname or alias.name: alias.name for alias in ours}
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "ectype":
            found += [f"{node.module}.{alias.name}" for alias in node.names if _is_private(alias.name)]
            parts = [alias for alias in node.names if _is_module(f"{node.module}.{alias.name}")]
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in parts}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and ast.unparse(node.value) in modules:
            found.append(f"{modules[ast.unparse(node.value)]}.{node.attr}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] in ("setattr", "getattr"):
            module, name = (*node.args, None, None)[:2]
            if module is not None and ast.unparse(module) in modules and isinstance(name, ast.Constant):
                found += [f"{modules[ast.unparse(module)]}.{name.value}"] if _is_private(str(name.value)) else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("ectype."):
            module, _, name = node.value.rpartition(".")
            found += [node.value] if _is_module(module) and _is_private(name) else []
    return found


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=_name)
def test_no_file_uses_a_private_name_of_another(path: Path) -> None:
    assert private_names(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "text",
    [
        "from ectype.train.loop import _one", "from ectype.train import loop\nloop._one()",
        "import ectype.train.loop\nectype.train.loop._one()", "import ectype.train.loop as l\nl._one = 1",
        "from ectype.train import loop\nmonkeypatch.setattr(loop, '_one', None)",
        "monkeypatch.setattr('MODULE._one', None)".replace("MODULE", LOOP),
    ],
)  # fmt: skip
def test_each_way_to_a_private_name_is_found(text: str) -> None:
    assert private_names(ast.parse(text)) == [LOOP + "._one"]
    assert private_names(ast.parse(text.replace("_one", "__one__"))) == []
    assert private_names(ast.parse(text.replace("_one", "one"))) == []


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports a test file by its bare name, and refuses to collect a second one."""
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
