"""In every environment the agent starts or stays off, and the job never fails because of it."""

import os

import pytest

AGENT, NO_AGENT = (0, "agent\n", ""), (0, "no agent\n", "")
HEAVY = {
    "argparse",
    "asyncio",
    "ctypes",
    "email",
    "gettext",
    "http",
    "multiprocessing",
    "ssl",
    "subprocess",
    "unittest",
}


@pytest.mark.parametrize("environment", [{"HOME": "/does/not/exist"}, {"HOME": "", "PATH": ""}], ids=str)
def test_agent_needs_hardly_any_environment(site, environment: dict[str, str]) -> None:
    assert site.job(**environment) == AGENT


def test_user_without_passwd_entry_owns_the_sample(foreign) -> None:
    assert foreign.job() == AGENT
    (file,) = foreign.shared.glob("*.json")
    assert file.stat().st_uid == foreign.user


def test_temp_dir_is_used_without_a_home(foreign) -> None:
    foreign.shared.chmod(0o1777)
    assert foreign.job(HOME="/", GPUFRAG_DIR="", TMPDIR=str(foreign.shared)) == AGENT


def test_unwritable_folder_is_reported_in_one_line(foreign) -> None:
    code, out, err = foreign.job(GPUFRAG_DIR="/proc")
    assert (code, out, err.count("\n")) == (0, "agent\n", 1)
    assert "set GPUFRAG_DIR to a folder" in err


def test_read_only_copy_is_enough(foreign) -> None:
    """An image with a read-only root: nothing is compiled into it either."""
    for path in [foreign.folder, *foreign.folder.rglob("*")]:
        if not path.is_symlink() and path != foreign.shared:
            path.chmod(path.stat().st_mode & 0o555)
    assert foreign.job() == AGENT
    assert list(foreign.folder.rglob("__pycache__")) == []


@pytest.mark.parametrize("part", ["copy/versions", "copy/gpufrag/agent", "copy/gpufrag/shim"])
def test_unreadable_copy_is_at_most_one_line(foreign, part: str) -> None:
    (foreign.folder / part).chmod(0o700)
    code, out, err = foreign.job()
    assert (code, out) == NO_AGENT[:2]
    assert err.count("\n") <= 1


def test_missing_copy_is_no_error(site) -> None:
    (site.folder / "copy").rename(site.folder / "away")
    assert site.job() == NO_AGENT


def test_incomplete_copy_is_reported_in_one_line(site) -> None:
    (site.shim.parent.resolve() / "agent" / "arrival.py").unlink()
    code, out, err = site.job()
    assert (code, out, err.count("\n")) == (0, "no agent\n", 1)
    assert "training continues" in err


@pytest.mark.parametrize("name", ["GPUFRAG_INTERVAL", "GPUFRAG_BUDGET", "GPUFRAG_ANCHOR"])
def test_invalid_setting_is_reported_in_one_line(site, name: str) -> None:
    code, out, err = site.job(**{name: "soon"})
    assert (code, out, err.count("\n")) == (0, "no agent\n", 1)
    assert name in err
    assert site.job(**{name: "soon"}, GPUFRAG_DISABLE="1") == NO_AGENT


def test_failure_of_a_parent_is_published_by_its_child(site) -> None:
    assert site.job(GPUFRAG_SHIM_FAILED="2")[:2] == AGENT[:2]
    assert site.sample().health.errors == {"injection": 1}


def test_start_without_torch_loads_three_small_modules(site) -> None:
    program = "import sys; print(' '.join(sorted(sys.modules)))"
    alone, ours = (
        set(site.run("{python}", "-c", program, PYTHONPATH=path).stdout.split()) for path in ("", str(site.shim))
    )
    assert ours == alone | {"gpufrag", "gpufrag.agent", "gpufrag.agent.arrival", "sitecustomize", "__future__"}


def test_first_use_of_a_gpu_loads_nothing_heavy(site) -> None:
    done = site.run("{python}", "-c", "import job, sys; print(' '.join(sys.modules))")
    assert set(done.stdout.splitlines()[1].split()) & HEAVY == set()


def test_job_leaves_only_its_sample_file(site) -> None:
    before = set(os.listdir(site.folder))
    assert site.job(PYTHONDONTWRITEBYTECODE="1") == AGENT
    assert set(os.listdir(site.folder)) == before
    assert [path.suffix for path in site.shared.iterdir()] == [".json"]
