"""Which files the agent needs: its own and, according to their import statements, all of ours that those import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SHIM = Path("shim", "sitecustomize.py")


def agent_files(package: Path) -> list[Path]:
    """Return the shim, the agent, the integrations and what they import, relative to `package`, sorted."""
    roots = [*(package / "agent").rglob("*.py"), *(package / "integrations").glob("*.py")]
    waiting = [path.relative_to(package) for path in sorted(roots)]
    found = {path.relative_to(package) for path in (package / SHIM.parent).glob("*.py")}
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        tree = ast.parse((package / path).read_text(encoding="utf-8"))
        # the functions of the package's __init__ import much that is for other programs
        statements = tree.body if path == Path("__init__.py") else [*_executed(tree)]
        waiting += [Path("__init__.py"), *(file for node in statements for file in _imported(node, path, package))]
    return sorted(found)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node except those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from _executed(node)


def _imported(node: ast.AST, path: Path, package: Path) -> Iterator[Path]:
    """Yield the files of the modules that a relative import names, and of the packages that contain them."""
    if not isinstance(node, ast.ImportFrom) or node.level == 0:
        return
    named = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    for module in (named, *(named / name.name for name in node.names)):
        file = module.parent / f"{module.name}.py"
        if (package / file).is_file():
            yield file
        for folder in (module, *module.parents):
            if (package / folder / "__init__.py").is_file():
                yield folder / "__init__.py"
