"""The pages that list the metrics say what the table says. GPUFRAG_UPDATE=1 brings them up to date."""

import pytest

from gpufrag.metrics import TABLE
from gpufrag.metrics.markdown import BEGIN, END, markdown_table, with_table
from helpers import TESTS, kept


@pytest.mark.parametrize(("page", "brief"), [("README.md", True), ("docs/metrics.md", False)])
def test_page_is_up_to_date(page, brief):
    path = TESTS.parent / page
    text = with_table(path.read_text(encoding="utf-8"), markdown_table(brief=brief))
    assert text is not None, f"{page} lacks the markers {BEGIN} and {END}"
    kept(path, text)


@pytest.mark.parametrize("brief", [True, False])
def test_every_metric_has_a_line(brief):
    text = markdown_table(brief=brief)
    assert [row.name for row in TABLE if text.count(f"| `{row.name}` |") != 1] == []


def test_only_what_is_between_the_markers_is_replaced():
    assert with_table(f"a\n{BEGIN}\nold\n{END}\nz\n", "new\n") == f"a\n{BEGIN}\nnew\n{END}\nz\n"


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}"])
def test_a_page_without_markers_is_refused(page):
    assert with_table(page, "new") is None
