"""The Dockerfile: linted, built on a local Debian without a registry, and run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufrag import __version__
from gpufrag.config.sidecar import DEFAULT_PORT
from manifests import ROOT, output, tool
from monitoring import eventually, free_port, process

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

BASE = "localhost/gpufrag-base"
PYTHON = "usr/bin/python3"


@dataclass(frozen=True)
class Builder:
    """buildah with its own storage."""

    folder: Path

    def command(self, *arguments: object) -> list[str]:
        storage = ["--root", self.folder / "root", "--runroot", self.folder / "run", "--storage-driver", "overlay"]
        return [str(word) for word in (tool("buildah", "Debian: buildah"), *storage, *arguments)]

    def __call__(self, *arguments: object) -> str:
        return output(self.command(*arguments)).strip()


@dataclass(frozen=True)
class Image:
    """A built image, and a container of it."""

    builder: Builder
    container: str
    config: dict[str, Any]

    def command(self, *arguments: object) -> list[str]:
        return self.builder.command("run", "--isolation", "chroot", self.container, "--", *arguments)

    def run(self, *arguments: object) -> str:
        return output(self.command(*arguments)).strip()

    @property
    def start(self) -> list[str]:
        """The default command of the image."""
        return [*self.config["Entrypoint"], *(self.config.get("Cmd") or [])]


def mirror(codename: str) -> str:
    """The Debian mirror that this machine uses."""
    wanted = ["--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {codename}"]
    return output([tool("apt-get", "a Debian machine"), "indextargets", *wanted]).splitlines()[0]


def debian(folder: Path) -> Path:
    """A minimal Debian with Python, of this machine's release."""
    debootstrap = tool("debootstrap", "Debian: debootstrap")
    release = dict(row.split("=", 1) for row in Path("/etc/os-release").read_text().splitlines() if "=" in row)
    codename = release["VERSION_CODENAME"]
    packages = "--include=python3,python3-venv,ca-certificates"
    output([debootstrap, "--variant=minbase", packages, codename, folder, mirror(codename)])
    return folder


def wheels(folder: Path, python: str) -> Path:
    """The wheels that the images install, for that Python."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    output(
        [*pip, "--only-binary=:all:", "--python-version", python, "--dest", folder, f"{ROOT}[restarter]", "hatchling"]
    )
    return folder


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    if os.geteuid() != 0:
        pytest.skip("needs root: a Debian is made and images are built without a daemon")
    folder = tmp_path_factory.mktemp("image")
    made = Builder(folder)
    try:
        made("--version")
        rootfs = debian(folder / "rootfs")
        wheels(folder / "wheels", (rootfs / PYTHON).readlink().name.removeprefix("python"))
        container = made("from", "scratch")
        made("add", "--quiet", container, rootfs, "/")
        made("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(rootfs)  # pytest would keep its 300 MB for the next three runs
        yield made
        made("rm", "--all")
        made("rmi", "--all", "--force")
    finally:
        unmount_below(folder)  # pytest cannot remove a folder with mounts, and fails the whole run


def unmount_below(folder: Path) -> None:
    """Unmount what buildah left mounted, innermost first."""
    mounted = (Path(row.split()[4]) for row in Path("/proc/self/mountinfo").read_text().splitlines())
    for mount in reversed([path for path in mounted if folder in path.parents]):
        output(["umount", "--lazy", mount])


def built(builder: Builder, target: str) -> Image:
    name = f"localhost/gpufrag-{target}"
    arguments = {"BASE": BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    given = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    how = ["--quiet", "--isolation", "chroot", "--pull-never", "--format", "docker", "--target", target, "--tag", name]
    builder("bud", *how, *given, "--volume", f"{builder.folder / 'wheels'}:/wheels:ro", ROOT)
    config = json.loads(builder("inspect", "--type", "image", name))["Docker"]["config"]
    return Image(builder, builder("from", name), config)


@pytest.fixture(scope="module")
def sidecar(builder: Builder) -> Image:
    return built(builder, "sidecar")


@pytest.fixture(scope="module")
def receiver(builder: Builder) -> Image:
    return built(builder, "receiver")


def test_hadolint_accepts_dockerfile():
    output([tool("hadolint", "pip install -e .[deploy]"), ROOT / "Dockerfile"])


def test_default_target_is_the_sidecar():
    stages = [row for row in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines() if row.startswith("FROM ")]
    assert stages[-1].endswith(" AS sidecar")


def test_sidecar_image_serves(sidecar, tmp_path):
    port = free_port()
    with process(sidecar.command("timeout", 60, *sidecar.start, "--port", port), tmp_path / "log"):
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: httpx.get(f"{url}/-/healthy", trust_env=False).is_success, "the sidecar is up")
        assert f'version="{__version__}"' in httpx.get(f"{url}/metrics", trust_env=False).text


def test_sidecar_image_has_a_healthcheck(sidecar):
    how, *command = sidecar.config["Healthcheck"]["Test"]
    assert how == "CMD", "no shell is needed for it"
    assert "--pid" in sidecar.run(*command, "--help")
    assert str(DEFAULT_PORT) in {row.partition("/")[0] for row in sidecar.config["ExposedPorts"]}


def test_agent_can_be_copied_from_image(sidecar):
    line = sidecar.run("gpufrag", "install-agent", "/tmp/agent")
    assert line == "PYTHONPATH=/tmp/agent/gpufrag/shim"
    assert sidecar.run("diff", "-r", "/gpufrag-agent", "/tmp/agent") == ""


def test_restarter_image_starts(receiver):
    assert receiver.start == ["gpufrag", "restarter"]
    config = "printf %064d 0 >token; chmod 600 token; echo 'auth: {bearer_file: token}' >restarter.yaml"
    receiver.run("sh", "-ec", f"cd /tmp; {config}")
    assert ": valid" in receiver.run(*receiver.start, "--config", "/tmp/restarter.yaml", "--check")
    receiver.run("/opt/gpufrag/bin/python", "-c", "import gpufrag.restarter.kubernetes.client, lightkube")


def test_images_do_not_run_as_root(sidecar, receiver):
    assert [image.config["User"] for image in (sidecar, receiver)] == ["65532:65532"] * 2
    assert sidecar.run("id", "-u") == "65532"


def test_sidecar_image_has_no_torch_or_kubernetes_client(sidecar):
    for module in ("torch", "lightkube"):
        done = subprocess.run(sidecar.command("/opt/gpufrag/bin/python", "-c", f"import {module}"), capture_output=True)
        assert b"ModuleNotFoundError" in done.stderr
