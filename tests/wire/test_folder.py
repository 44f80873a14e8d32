"""The folder that agents and sidecar share, and the names in it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import Unavailable
from gpufrag.wire import folder
from gpufrag.wire.folder import FileName, ReportName, draft_name, name_of_draft, open_plain, write_file
from gpufrag.wire.sample import Identity

hosts = st.text(min_size=0, max_size=100)


@given(hosts, st.integers(1, 2**22), st.floats(0, 2e9))
def test_file_name_round_trips(host: str, pid: int, start: float) -> None:
    name = FileName.of(Identity(host, pid, start))
    assert FileName.parse(name.sample) == FileName.parse(name.socket) == name


@given(hosts, st.integers(1, 2**22))
def test_file_name_is_safe_and_short(host: str, pid: int) -> None:
    name = FileName.of(Identity(host, pid, 1764430000.123)).socket
    assert "/" not in name
    assert not name.startswith(".")
    assert len(f"/proc/self/fd/999/{name}") <= 107


@given(hosts, st.integers(1, 2**22), st.integers(1, 10**9 - 1))
def test_report_name_round_trips(host: str, pid: int, number: int) -> None:
    name = ReportName(FileName.of(Identity(host, pid, 5.5)), number)
    assert ReportName.parse(name.file) == name
    assert FileName.parse(name.file) is None
    assert ReportName.parse(name.process.sample) is None


ALIEN = ("", "notes.json", "a-1.json", "a-x-2.json", "a-1-2.txt", ".a-1-2.json", "a-1-2.json.tmp", "a/b-1-2.json")


@pytest.mark.parametrize("name", ALIEN)
def test_other_names_are_not_parsed(name: str) -> None:
    assert FileName.parse(name) is None


def test_named_folder_is_created_and_used(tmp_path: Path) -> None:
    environment = {"GPUFRAG_DIR": str(tmp_path / "a" / "b")}
    assert folder.to_write(environment) == folder.to_read(environment) == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


def test_writable_shared_folder_is_used(tmp_path: Path) -> None:
    assert folder.to_write({}, shared=tmp_path) == folder.to_read({}, shared=tmp_path, temp=tmp_path) == tmp_path


def test_private_folder_is_the_fallback(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert not folder.to_read({}, missing, tmp_path).exists()
    path = folder.to_write({}, missing, tmp_path)
    assert path.stat().st_mode & 0o777 == 0o700
    assert folder.to_read({}, missing, tmp_path) == path == folder.to_write({}, missing, tmp_path)


def _link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.parent / "elsewhere")


def _open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


@pytest.mark.parametrize("prepare", [_link, _open_to_all, Path.touch])
def test_unsafe_private_folder_is_refused(tmp_path: Path, prepare: object) -> None:
    prepare(tmp_path / f"gpufrag-{os.geteuid()}")  # type: ignore[operator]
    for choose in (folder.to_write, folder.to_read):
        with pytest.raises(Unavailable, match="GPUFRAG_DIR"):
            choose({}, shared=tmp_path / "missing", temp=tmp_path)


def test_private_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch) -> None:
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    (tmp_path / f"gpufrag-{stranger}").mkdir(mode=0o700)
    with pytest.raises(Unavailable, match=f"is not a private folder of uid {stranger}"):
        folder.to_write({}, shared=tmp_path / "missing", temp=tmp_path)


def test_failed_creation_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"cannot create .*file/sub: .*; set GPUFRAG_DIR"):
        folder.to_write({"GPUFRAG_DIR": str(tmp_path / "file" / "sub")})


def test_unwritable_folder_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(Unavailable, match="not writable for uid"):
        folder.to_write({"GPUFRAG_DIR": str(tmp_path)})


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_only_a_regular_file_is_opened(make, tmp_path: Path) -> None:
    make(tmp_path / "it")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="it"):
        open_plain(tmp_path / "it")
    assert os.listdir("/proc/self/fd") == before
    (tmp_path / "plain").write_bytes(b"plain")
    with open_plain(tmp_path / "plain") as opened:
        assert opened.read() == b"plain"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "host-1-2.json"


def test_written_file_replaces_the_old_one(path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_file(path, b"one")
        write_file(path, b"two", sync=True)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_reader_never_sees_a_partial_write(path: Path) -> None:
    contents = [bytes([n]) * 50_000 for n in range(200)]
    write_file(path, contents[0])
    writer = threading.Thread(target=lambda: [write_file(path, content) for content in contents])
    writer.start()
    while writer.is_alive():
        assert path.read_bytes() in contents
    writer.join()


def test_full_disk_leaves_the_old_file_alone(path: Path, monkeypatch) -> None:
    write_file(path, b"old")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_short_writes_are_completed(path: Path, monkeypatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_file(path, b"0123456789")
    assert path.read_bytes() == b"0123456789"


@pytest.mark.parametrize("lay", [lambda at, victim: at.symlink_to(victim), lambda at, victim: os.mkfifo(at)])
@pytest.mark.parametrize("place", ["draft", "target"])
def test_write_follows_no_link_and_opens_no_pipe(path: Path, lay, place: str, monkeypatch) -> None:
    victim, draft = path.with_name("victim"), path.with_name(draft_name(path.name))
    victim.write_text("precious")
    monkeypatch.setattr(folder, "draft_name", lambda name: draft.name)
    lay(draft if place == "draft" else path, victim)
    if place == "draft":
        with pytest.raises(FileExistsError):
            write_file(path, b"new")
        assert os.path.lexists(draft)
    else:
        write_file(path, b"new")
        assert path.read_bytes() == b"new"
    assert victim.read_text() == "precious"


def test_draft_name_is_fresh_and_names_its_file() -> None:
    drafts = {draft_name("host-1-2.json") for _ in range(9)}
    assert len(drafts) == 9
    assert {name_of_draft(draft) for draft in drafts} == {"host-1-2.json"}
    assert name_of_draft("host-1-2.json") is name_of_draft(".host-1-2.json.tmp") is None


def test_write_above_size_limit_raises_no_signal(path: Path) -> None:
    """A program may have set SIGXFSZ to its default action, which ends it."""
    program = """
import resource, signal, sys
from pathlib import Path
from gpufrag.wire.folder import write_file
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_file(Path(sys.argv[1]), b"x" * 1001)
except OSError as error:
    print(error.strerror)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(folder.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program, path], env=environment, text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "File too large\n", "")
    assert list(path.parent.iterdir()) == []
