"""In every environment the agent starts or stays off, and the job never fails because of it."""

from __future__ import annotations

import os

import pytest

from gpufrag.wire.sample import decode

FOREIGN = 1_000_680_000

JOB = ["{python}", "-m", "job"]


def test_a_home_that_does_not_exist(site) -> None:
    done = site.run(*JOB, HOME="/does/not/exist")
    assert (done.returncode, done.stdout, done.stderr) == (0, "agent\n", "")


def test_hardly_any_environment(site) -> None:
    done = site.run(*JOB, HOME="", PATH="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "agent\n", "")


def test_a_user_that_no_passwd_file_knows(foreign) -> None:
    done = foreign.run(*JOB, user=FOREIGN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "agent\n", "")
    (file,) = foreign.shared.glob("*.json")
    assert file.stat().st_uid == FOREIGN


def test_that_user_without_a_home_and_with_the_folder_of_the_temp_dir(foreign) -> None:
    foreign.shared.chmod(0o1777)
    done = foreign.run(*JOB, user=FOREIGN, HOME="/", GPUFRAG_DIR="", TMPDIR=str(foreign.shared))
    assert (done.returncode, done.stdout, done.stderr) == (0, "agent\n", "")


def test_a_folder_that_may_not_be_written_is_one_line_and_no_more(foreign) -> None:
    done = foreign.run(*JOB, user=FOREIGN, GPUFRAG_DIR="/proc")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "agent\n", 1)
    assert "set GPUFRAG_DIR to a folder" in done.stderr


def test_all_that_the_job_reads_may_be_read_only(foreign) -> None:
    """A frozen environment, an image with a read-only root: nothing is compiled into it either."""
    for path in [foreign.folder, *foreign.folder.rglob("*")]:
        if not path.is_symlink() and path != foreign.shared:
            path.chmod(path.stat().st_mode & 0o555)
    done = foreign.run(*JOB, user=FOREIGN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "agent\n", "")
    assert list(foreign.folder.rglob("__pycache__")) == []


@pytest.mark.parametrize("what", ["copy/versions", "copy/gpufrag/agent", "copy/gpufrag/shim"])
def test_a_copy_that_the_user_may_not_read_costs_a_line_at_most(foreign, what: str) -> None:
    (foreign.folder / what).chmod(0o700)
    done = foreign.run(*JOB, user=FOREIGN)
    assert (done.returncode, done.stdout) == (0, "no agent\n")
    assert done.stderr.count("\n") <= 1


def test_a_copy_that_is_gone_costs_nothing(site) -> None:
    (site.folder / "copy").rename(site.folder / "away")
    done = site.run(*JOB)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no agent\n", "")


def test_a_copy_of_which_a_part_is_missing_costs_a_line(site) -> None:
    (site.shim.parent.resolve() / "agent" / "arrival.py").unlink()
    done = site.run(*JOB)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "no agent\n", 1)
    assert "training continues" in done.stderr


@pytest.mark.parametrize("name", ["GPUFRAG_INTERVAL", "GPUFRAG_BUDGET", "GPUFRAG_ANCHOR"])
def test_a_setting_that_is_none_costs_a_line(site, name: str) -> None:
    done = site.run(*JOB, **{name: "soon"})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "no agent\n", 1)
    assert name in done.stderr


def test_disabled_not_even_a_setting_that_is_none_is_looked_at(site) -> None:
    done = site.run(*JOB, GPUFRAG_DISABLE="1", GPUFRAG_INTERVAL="soon")
    assert (done.returncode, done.stdout, done.stderr) == (0, "no agent\n", "")


def test_what_failed_above_is_published_by_an_agent_below(site) -> None:
    done = site.run(*JOB, GPUFRAG_SHIM_FAILED="2")
    assert (done.returncode, done.stdout) == (0, "agent\n")
    (file,) = site.shared.glob("*.json")
    assert decode(file.read_bytes()).health.errors == {"injection": 1}


HEAVY = {"argparse", "asyncio", "gettext", "http", "multiprocessing", "urllib.request", "ssl", "subprocess"}
HEAVY |= {"unittest", "email", "ctypes"}


def test_without_torch_the_start_loads_three_small_modules_of_ours_and_no_other(site) -> None:
    told = "import sys; print(' '.join(sorted(sys.modules)))"
    alone, ours = (
        set(site.run("{python}", "-c", told, PYTHONPATH=path).stdout.split()) for path in ("", str(site.shim))
    )
    expected = {"gpufrag", "gpufrag.agent", "gpufrag.agent.arrival", "sitecustomize", "__future__"}
    assert ours == alone | expected


def test_the_first_use_of_a_gpu_loads_nothing_heavy_either(site) -> None:
    done = site.run("{python}", "-c", "import job, sys; print(' '.join(sys.modules))")
    assert set(done.stdout.splitlines()[1].split()) & HEAVY == set()


def test_a_job_leaves_nothing_but_its_file(site) -> None:
    before = set(os.listdir(site.folder))
    assert site.run(*JOB, PYTHONDONTWRITEBYTECODE="1").returncode == 0
    assert set(os.listdir(site.folder)) == before
    assert [path.suffix for path in site.shared.iterdir()] == [".json"]
