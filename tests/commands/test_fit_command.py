"""`gpufrag fit`: the table and JSON."""

from __future__ import annotations

import gzip
import json

from helpers import TESTS

TRACE = TESTS / "golden" / "churn-small-default.json.gz"


def test_table_has_a_row_per_setting(cli) -> None:
    first, *lines = cli.text("fit", TRACE, "--card", "2GiB", "--card", "80GiB").splitlines()
    assert "churn-small-default.json.gz: device 0: needs" in first
    assert any(line.startswith("torch's defaults (recorded)") and line.endswith("fits") for line in lines)


def test_json_has_bytes_and_null(cli) -> None:
    recorded = cli.device("fit", TRACE, "--card", "1GiB", "--card", "80GiB")["fits"][0]
    assert recorded["smallest_limit"] % (2 << 20) == 0
    assert recorded["flushes"] == {"1.00 GiB": None, "80.0 GiB": 0}


def test_anchor_is_named_as_its_option(cli) -> None:
    anchored = cli.device("fit", TRACE, "--card", "80GiB")["fits"][-1]
    size = f"{anchored['anchor'] >> 20}MiB"
    assert (anchored["conf"], anchored["anchor"] > 0) == ("", True)
    assert f"torch's defaults, --anchor {size} " in cli.text("fit", TRACE, "--card", "80GiB")


def test_setting_is_named_only_if_it_saves_2_percent(cli) -> None:
    assert "needs only" not in cli.text("fit", TRACE, "--card", "2GiB")  # 1.96 instead of 1.98 GiB
    capped = TESTS / "golden" / "train-cap4.json.gz"
    assert "needs only 2.45 GiB with " in cli.text("fit", capped, "--card", "80GiB")


def test_requests_that_failed_in_the_recording_are_counted(cli) -> None:
    note = "Requests that failed in the recording: 1. They are not counted, so the job may need more."
    assert note in cli.text("fit", TRACE, "--card", "2GiB")
    assert cli.device("fit", TRACE, "--card", "2GiB")["failed_requests"] == 1
    capped = TESTS / "golden" / "train-cap4.json.gz"
    assert "that failed in the recording" not in cli.text("fit", capped, "--card", "2GiB")


def test_late_trace_compares_settings_from_packed_heaps(cli, tmp_path) -> None:
    raw = json.loads(gzip.decompress(TRACE.read_bytes()))
    late = tmp_path / "late.json"
    late.write_text(json.dumps(raw | {"events": raw["events"][4000:]}))
    text = cli.text("fit", late, "--card", "80GiB")
    assert "torch's defaults (recorded) " in text
    assert "torch's defaults (recorded, packed) " in text
    assert "compare them with (recorded, packed)." in text
    assert "torch's defaults (recorded, empty_cache) " in text
