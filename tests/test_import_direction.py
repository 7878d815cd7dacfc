"""Imports point one way, and the command line starts without the numerical libraries. Read from source, not run."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "ectype"

# A part may import parts of a lower rank and its own files; two parts of one rank do not know each other.
RANKS = {
    "errors": 0,
    "artifacts": 1,
    "progress": 1,
    "stopping": 1,
    "recipe": 2,
    "run": 3,
    "model": 3,
    "weights": 4,
    "data": 4,
    "train": 5,
    "evaluate": 6,
    "plan": 6,
    "compare": 7,
    "tasks": 7,
    "launch": 8,
    "faults": 8,
    "report": 9,
    "demo": 10,
    "cli": 11,
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc"}
SLOW_TO_IMPORT = {"jax", "jaxlib", "flax", "optax", "orbax", "grain", "numpy", "torch", "transformers", "safetensors"}
SLOW_TO_IMPORT |= {"plotly", "pydantic", "lm_eval"}

FILES = sorted(PACKAGE.rglob("*.py"))


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported_modules(tree: ast.AST) -> list[tuple[str, int]]:
    """Dotted names of the modules that a tree imports anywhere, with their lines."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def _at_import_time(tree: ast.Module) -> ast.Module:
    """The module without the bodies of its functions and its `if TYPE_CHECKING` blocks."""

    def runs(node: ast.stmt) -> bool:
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        return not checking and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)

    return ast.Module([node for node in tree.body if runs(node)], [])


def _our_imports(path: Path) -> list[tuple[str, int]]:
    modules = _imported_modules(ast.parse(path.read_text()))
    return [(name.split(".")[1], line) for name, line in modules if name.startswith("ectype.")]


def test_every_part_has_a_rank() -> None:
    parts = {_part(path) for path in FILES} - {"__init__", "__main__"}
    assert parts - RANKS.keys() == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    part = _part(path)
    wrong = [
        f"line {line}: {part} imports {other}"
        for other, line in _our_imports(path)
        if other != part and RANKS.get(other, -1) >= RANKS.get(part, 0)
    ]
    assert wrong == []


def test_training_never_sees_evaluation() -> None:
    higher = {part for part, rank in RANKS.items() if rank > RANKS["train"]}
    for path in (PACKAGE / "train").rglob("*.py"):
        assert higher & {other for other, _ in _our_imports(path)} == set(), path


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").rglob("*.py")), ids=lambda path: path.name)
def test_the_command_line_imports_stages_only_on_use(path: Path) -> None:
    early = _imported_modules(_at_import_time(ast.parse(path.read_text())))
    allowed = ("ectype.cli", "ectype.errors", "ectype.stopping", "ectype.__version__")
    slow = [name for name, _ in early if name.split(".")[0] in SLOW_TO_IMPORT]
    stages = [name for name, _ in early if name.startswith("ectype") and not name.startswith(allowed)]
    assert slow + stages == []


def test_no_module_is_named_for_nothing_in_particular() -> None:
    names = {part.removesuffix(".py") for path in FILES for part in path.relative_to(PACKAGE).parts}
    assert names & FORBIDDEN_NAMES == set()
