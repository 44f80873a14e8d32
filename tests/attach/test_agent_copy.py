"""What `gpufrag install-agent` puts into a folder, and how."""

import ast
import os
import shutil
import stat
import subprocess
import sys
import threading
import venv
from pathlib import Path

import pytest

from gpufrag.attach.agent_copy.install import install
from gpufrag.attach.agent_copy.modules import agent_files
from gpufrag.commands.run import PACKAGE
from gpufrag.errors import Unavailable, UsageError

FRAMEWORKS = {"__init__.py": ["torch"], "lightning.py": ["lightning"], "huggingface.py": ["transformers"]}
"""What functions for users of a framework import when they are called."""


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The package of another version."""
    package = shutil.copytree(PACKAGE, tmp_path / "older" / "gpufrag")
    (package / "units.py").write_text("# as it was\n" + (package / "units.py").read_text())
    return package


def test_copy_holds_the_whole_agent_and_nothing_compiled(tmp_path: Path) -> None:
    done = install(PACKAGE, tmp_path)
    files = {path.relative_to(tmp_path / "gpufrag") for path in (tmp_path / "gpufrag").rglob("*") if path.is_file()}
    assert files == set(agent_files(PACKAGE))
    assert {path.relative_to(PACKAGE) for path in (PACKAGE / "agent").glob("*.py")} < files
    assert {path.suffix for path in files} == {".py"}
    assert done.shim == tmp_path / "gpufrag" / "shim"


def test_other_programs_are_not_in_the_copy() -> None:
    others = {"commands", "sidecar", "metrics", "web", "mixin", "restarter", "demo", "cli.py"}
    assert others & {path.parts[0] for path in agent_files(PACKAGE)} == set()


@pytest.mark.parametrize("path", agent_files(PACKAGE), ids=str)
def test_copied_file_needs_only_the_standard_library(path: Path) -> None:
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"), feature_version=(3, 10))
    plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    plain += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    allowed = {*sys.stdlib_module_names, "gpufrag", *FRAMEWORKS.get(path.name, ())}
    assert {name.partition(".")[0] for name in plain} - allowed == set()


def test_second_install_changes_nothing(tmp_path: Path) -> None:
    first = install(PACKAGE, tmp_path)
    before = _contents(tmp_path), (tmp_path / "gpufrag").lstat().st_mtime_ns
    second = install(PACKAGE, tmp_path)
    assert (first.changed, second.changed) == (True, False)
    assert (_contents(tmp_path), (tmp_path / "gpufrag").lstat().st_mtime_ns) == before


def test_older_copy_is_replaced_and_kept(tmp_path: Path, older: Path) -> None:
    folder = tmp_path / "copy"
    install(older, folder)
    old = (folder / "gpufrag").resolve()
    assert install(PACKAGE, folder).changed
    assert (folder / "gpufrag" / "units.py").read_bytes() == (PACKAGE / "units.py").read_bytes()
    assert (old / "units.py").read_text().startswith("# as it was")
    assert install(older, folder).changed, "and back"


def test_reader_never_sees_half_a_copy(tmp_path: Path, older: Path) -> None:
    folder, ended = tmp_path / "copy", threading.Event()
    install(older, folder)
    broken: list[str] = []

    def read() -> None:
        while not ended.is_set():
            if not (folder / "gpufrag" / "agent" / "arrival.py").is_file():
                broken.append("missing")

    reader = threading.Thread(target=read)
    reader.start()
    for package in (PACKAGE, older) * 10:
        install(package, folder)
    ended.set()
    reader.join()
    assert broken == []


def test_failed_install_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(Unavailable, match=f"^cannot write {tmp_path}: .*No space left"):
        install(PACKAGE, tmp_path)
    assert _contents(tmp_path) == {}


def test_copy_modes_ignore_source_and_umask(tmp_path: Path, older: Path) -> None:
    for path in [older, *older.rglob("*")]:
        path.chmod(path.stat().st_mode & 0o555)
    mask = os.umask(0o077)
    try:
        install(older, tmp_path / "copy")
    finally:
        os.umask(mask)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "copy").rglob("*")}
    assert [path for path, mode in modes.items() if mode & 0o444 != 0o444] == []
    assert {mode for path, mode in modes.items() if path.suffix == ".py"} == {0o644}


def test_swapped_folder_is_not_opened_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user replaces a new folder in a shared one with a link to a private folder."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    mkdir = os.mkdir

    def swap(folder: Path, *how: object) -> None:
        mkdir(folder)
        folder.rename(tmp_path / "moved")
        folder.symlink_to(private)

    monkeypatch.setattr(Path, "mkdir", swap)
    with pytest.raises(Unavailable, match="cannot write"):
        install(PACKAGE, tmp_path / "copy")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@pytest.mark.parametrize("link", [None, "site-packages/gpufrag", "nowhere"])
def test_foreign_gpufrag_is_not_replaced(tmp_path: Path, link: str | None) -> None:
    own = tmp_path / ("site-packages/gpufrag" if link else "gpufrag")
    own.mkdir(parents=True)
    (own / "__init__.py").touch()
    if link:
        (tmp_path / "gpufrag").symlink_to(link)
    with pytest.raises(UsageError, match="was not made by install-agent"):
        install(PACKAGE, tmp_path)
    assert link is None or str((tmp_path / "gpufrag").readlink()) == link
    assert _contents(own) == {"__init__.py": b""}


@pytest.mark.parametrize("name", ["a:b", "a\nb", "a\x1bb", "a\udcffb"])
def test_folder_that_pythonpath_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="PYTHONPATH cannot name"):
        install(PACKAGE, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_changed_copy_is_an_error(tmp_path: Path) -> None:
    install(PACKAGE, tmp_path)
    (tmp_path / "gpufrag" / "units.py").write_text("changed")
    with pytest.raises(Unavailable, match="was changed after it was installed"):
        install(PACKAGE, tmp_path)


@pytest.fixture
def python(tmp_path: Path) -> str:
    venv.create(tmp_path / "venv", symlinks=True)
    return str(tmp_path / "venv" / "bin" / "python")


def _run(python: str, *words: str, **environment: str) -> tuple[str, str]:
    done = subprocess.run([python, *words], env=environment, text=True, capture_output=True, timeout=60)
    return done.stdout, done.stderr


LOADED = "import sys; print('gpufrag.agent' in sys.modules, 'sitecustomize' in sys.modules)"


def test_pth_loads_the_agent_behind_any_sitecustomize(tmp_path: Path, python: str) -> None:
    """Isolated interpreters read no variable but their site-packages."""
    first, again = (install(PACKAGE, tmp_path / "copy", python) for _ in range(2))
    assert (first.changed, again.changed) == (True, False)
    assert first.pth.is_relative_to(tmp_path / "venv")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").touch()
    assert _run(python, "-c", LOADED, PYTHONPATH=str(tmp_path / "other")) == ("True True\n", "")
    assert _run(python, "-I", "-c", LOADED) == ("True False\n", "")
    assert _run(python, "-c", LOADED, GPUFRAG_DISABLE="1") == ("False False\n", "")
    assert _run(python, "-c", LOADED, PYTHONPATH=str(first.shim)) == ("True True\n", "")


def test_pth_of_a_removed_copy_is_no_error(tmp_path: Path, python: str) -> None:
    install(PACKAGE, tmp_path / "copy", python)
    shutil.rmtree(tmp_path / "copy")
    assert _run(python, "-c", LOADED) == ("False False\n", "")


@pytest.mark.parametrize(("program", "what"), [("no/such/python", "No such file"), ("false", "cannot run 'false'")])
def test_unusable_interpreter_is_an_error_and_installs_nothing(tmp_path: Path, program: str, what: str) -> None:
    with pytest.raises(Unavailable, match=what):
        install(PACKAGE, tmp_path / "copy", program)
    assert not (tmp_path / "copy").exists()
