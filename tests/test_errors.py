import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag import errors


def children() -> list[type[errors.GpufragError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.GpufragError)]


@pytest.mark.parametrize("kind", children(), ids=lambda kind: kind.__name__)
def test_error_is_in_the_documented_tree(kind: type[errors.GpufragError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", children(), ids=lambda kind: kind.__name__)
def test_only_usage_errors_exit_with_2(kind: type[errors.GpufragError]) -> None:
    assert kind.exit_code == (2 if issubclass(kind, errors.UsageError) else 1)


def test_hostile_name_does_not_break_the_line():
    assert str(errors.BadInput("a\nb\x1b[31m.json: é is empty")) == "a\\nb\\x1b[31m.json: é is empty"


@given(st.text())
def test_error_is_one_printable_line(text):
    assert str(errors.GpufragError(text)).isprintable()
