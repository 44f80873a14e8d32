"""Sizes and durations, parsed and formatted."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufrag.errors import UsageError
from gpufrag.units import argument, format_bytes, format_duration, parse_bytes, parse_duration, whole


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("42949672960", 40 << 30),
        ("40GiB", 40 << 30),
        ("40 gib", 40 << 30),
        ("40Gi", 40 << 30),
        ("1.5MiB", 3 << 19),
        ("40GB", 40 * 10**9),
        ("512B", 512),
        (" 2KiB\n", 2048),
        ("1PiB", 1 << 50),
    ],
)
def test_size_is_parsed(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1e9", "nan", "inf", "0x10", "4 0GiB", "40GiBs", "1_000", "٤", "9" * 99]
)
def test_other_text_is_no_size(text):
    with pytest.raises(UsageError, match="not a size"):
        parse_bytes(text)


def test_bare_letter_is_refused_with_both_readings():
    with pytest.raises(UsageError, match=r"'40g' is ambiguous; write 40GiB \(1024\) or 40GB \(1000\)"):
        parse_bytes("40g")


def test_impossible_size_is_refused():
    with pytest.raises(UsageError, match="larger than any memory"):
        parse_bytes("9999999PiB")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (3 << 29, "1.50 GiB"),
        (1023 << 20, "1.00 GiB"),
        (150_000_000_000, "140 GiB"),
        (-2048, "-2.00 KiB"),
        (5 << 60, "5120 PiB"),
    ],
)
def test_size_is_formatted(size, text):
    assert format_bytes(size) == text


@given(st.integers(0, 1 << 61))
def test_formatted_size_parses_to_three_digits(size):
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.006)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20", 20),
        ("0.5", 0.5),
        ("20s", 20),
        ("250ms", 0.25),
        ("5m", 300),
        ("5min", 300),
        ("1h30m", 5400),
        ("2d", 172800),
    ],
)
def test_duration_is_parsed(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-5s", "5x", "1h-3m", "1e3", "nan", "5 parsecs"])
def test_other_text_is_no_duration(text):
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (15e-6, "15.0 µs"),
        (0.00026, "260 µs"),
        (0.0999, "99.9 ms"),
        (0.9999, "1.00 s"),
        (20, "20.0 s"),
        (59.96, "1 min"),
        (125, "2 min 5 s"),
        (5400, "1 h 30 min"),
        (4 * 86400, "4 d"),
        (-0.5, "-500 ms"),
    ],
)
def test_duration_is_formatted(seconds, text):
    assert format_duration(seconds) == text


@given(st.floats(1e-6, 1e7))
def test_formatted_duration_parses(seconds):
    text = format_duration(seconds)
    if not text.endswith("µs"):
        assert parse_duration(text) == pytest.approx(seconds, rel=0.05)


def test_flag_error_names_the_flag():
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--limit", type=argument(parse_bytes))
    assert parser.parse_args(["--limit", "2KiB"]).limit == 2048
    with pytest.raises(argparse.ArgumentError, match="argument --limit: '2K' is ambiguous"):
        parser.parse_args(["--limit", "2K"])


@pytest.mark.parametrize("text", ["-1", "8", "1.5", "1e3", "", "one", "9" * 30])
def test_number_out_of_bounds_is_refused(text):
    with pytest.raises(UsageError, match="is not a whole number from 0 to 7"):
        whole(0, 7)(text)


def test_number_without_upper_bound_is_parsed():
    assert (whole(0, 7)("7"), whole(1)(" 12 ")) == (7, 12)
    with pytest.raises(UsageError, match="'0' is not a whole number of at least 1"):
        whole(1)("0")
