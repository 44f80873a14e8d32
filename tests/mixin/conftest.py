import shutil

import pytest

from promtool import Judge


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool")
    if not found:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return found


@pytest.fixture(scope="session")
def judge(promtool: str, tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(promtool, tmp_path_factory.mktemp("rules"))
