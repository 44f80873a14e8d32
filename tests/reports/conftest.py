"""Text that is kept in the repository."""

import os

import pytest


@pytest.fixture(scope="session")
def kept():
    """kept(path, text): the text is what the file says; with GPUFRAG_UPDATE=1 the file is made to say it."""

    def check(path, text):
        if os.environ.get("GPUFRAG_UPDATE"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run with GPUFRAG_UPDATE=1"

    return check
