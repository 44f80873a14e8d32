"""Which files the agent needs: its own and, read from their import statements, all of ours that those import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SHIM = Path("shim", "sitecustomize.py")


def agent_files(package: Path) -> list[Path]:
    """Relative to `package`, the folder of gpufrag: the shim, the agent and what they import, sorted."""
    own = [*(package / "agent").rglob("*.py"), *(package / "integrations").glob("*.py")]  # these serve jobs too
    waiting = [path.relative_to(package) for path in sorted(own)]
    found = {SHIM}
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        tree = ast.parse((package / path).read_text(encoding="utf-8"))
        # the package's own face names much that is for other programs, inside its functions
        statements = tree.body if path == Path("__init__.py") else [*_running(tree)]
        waiting += [Path("__init__.py"), *(file for node in statements for file in _files(node, path, package))]
    return sorted(found)


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from _running(node)


def _files(node: ast.AST, path: Path, package: Path) -> Iterator[Path]:
    """The files of the modules that a relative import names, with the packages that they lie in."""
    if not isinstance(node, ast.ImportFrom) or node.level == 0:
        return
    named = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    for module in (named, *(named / name.name for name in node.names)):
        file = module.parent / f"{module.name}.py"
        if (package / file).is_file():
            yield file
        yield from (
            init for folder in (module, *module.parents) if (package / (init := folder / "__init__.py")).is_file()
        )
