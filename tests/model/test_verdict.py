"""The verdict on a failed request: each rule, which of two comes first, and what is said to be missing."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpufrag.model.remedies import NEXT_STEPS
from gpufrag.model.verdict import RULES, Cause, Facts, judge

MIB, GIB = 1 << 20, 1 << 30
DEVICE = Facts(
    requested=2 * GIB,
    driver_free=GIB,
    size=80 * GIB,
    limit=80 * GIB,
    reserved=70 * GIB,
    allocated=60 * GIB,
    active=60 * GIB,
    free_cached=10 * GIB,
    others=0,
)
"""Torn: 11 GiB are free. Each case below changes what it is about."""
FULL = replace(DEVICE, free_cached=0, reserved=78 * GIB, allocated=78 * GIB, active=78 * GIB)


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        (DEVICE, Cause.FRAGMENTATION),
        (replace(DEVICE, free_total=11 * GIB, largest_allocatable=GIB), Cause.FRAGMENTATION),
        (Facts(2 * GIB, free_total=2 * GIB, largest_allocatable=2 * GIB - 512), Cause.FRAGMENTATION),
        (Facts(2 * GIB, free_total=2 * GIB - 512, largest_allocatable=GIB), Cause.CAPACITY),
        (Facts(2 * GIB, free_total=3 * GIB, largest_allocatable=2 * GIB), Cause.UNKNOWN),
        (FULL, Cause.CAPACITY),
        (replace(FULL, captive=4 * GIB), Cause.CAPACITY),
        (Facts(81 * GIB, size=80 * GIB), Cause.CAPACITY),
        (Facts(1 << 60), Cause.CAPACITY),
        (replace(FULL, limit=79 * GIB, driver_free=20 * GIB, size=100 * GIB), Cause.LIMIT),
        (Facts(GIB, refused_by_limit=True), Cause.LIMIT),
        (replace(FULL, reserved=40 * GIB, allocated=40 * GIB, active=40 * GIB, others=39 * GIB), Cause.NEIGHBOURS),
        (Facts(None), Cause.UNKNOWN),
        (Facts(GIB), Cause.UNKNOWN),
        (replace(FULL, driver_free=3 * GIB, size=81 * GIB, limit=81 * GIB), Cause.UNKNOWN),
    ],
)
def test_each_cause(facts: Facts, cause: Cause) -> None:
    assert judge(facts).cause is cause


def test_a_limit_and_neighbours_both_in_the_way_are_the_limit() -> None:
    both = replace(FULL, requested=10 * GIB, limit=20 * GIB, reserved=14 * GIB, active=14 * GIB, others=65 * GIB)
    assert judge(both).cause is Cause.LIMIT
    assert judge(replace(both, requested=5 * GIB)).cause is Cause.NEIGHBOURS


def test_a_limit_that_rounding_may_hide_is_not_taken_to_have_allowed_the_request() -> None:
    """It printed 20.00 GiB: by it the request would just have fitted, and the driver had plenty."""
    tight = replace(DEVICE, driver_free=50 * GIB, limit=20 * GIB, reserved=20 * GIB - 3 * MIB, requested=2 * MIB)
    assert judge(tight).cause is Cause.UNKNOWN
    assert judge(replace(tight, precision=5 * MIB)).cause is Cause.FRAGMENTATION


def test_a_limit_that_would_not_help_is_no_limit() -> None:
    facts = replace(FULL, limit=79 * GIB, size=100 * GIB, driver_free=20 * GIB)
    assert judge(replace(facts, requested=30 * GIB)).cause is Cause.CAPACITY


def test_the_last_two_mebibytes_of_the_driver_count_for_nothing() -> None:
    facts = replace(FULL, driver_free=4 * MIB, requested=4 * MIB)
    assert judge(facts).cause is Cause.CAPACITY
    assert judge(replace(facts, free_cached=4 * MIB, reserved=78 * GIB + 4 * MIB)).cause is Cause.FRAGMENTATION


def test_memory_outside_the_allocator_is_others_only_beyond_a_context() -> None:
    facts = replace(FULL, others=None, reserved=40 * GIB, allocated=40 * GIB, active=40 * GIB)
    told = judge(facts)
    assert (told.cause, told.missing) == (Cause.NEIGHBOURS, ("which processes hold the device's memory",))
    small = judge(replace(FULL, requested=GIB + 512 * MIB, others=None))
    assert (small.cause, "1.00 GiB outside" in small.missing[0]) == (Cause.CAPACITY, True)


def test_free_memory_that_was_refused_points_to_a_limit_nobody_told() -> None:
    found = judge(Facts(GIB, driver_free=30 * GIB, size=80 * GIB, reserved=10 * GIB, allocated=10 * GIB))
    assert found.cause is Cause.LIMIT
    assert "limit" in found.missing[0]


def test_the_cache_alone_proves_fragmentation() -> None:
    assert judge(Facts(GIB, reserved=10 * GIB, allocated=8 * GIB)).cause is Cause.FRAGMENTATION
    assert judge(Facts(3 * GIB, reserved=10 * GIB, allocated=8 * GIB)).cause is Cause.UNKNOWN


def test_a_limit_set_below_what_is_held_leaves_the_cache() -> None:
    facts = replace(DEVICE, limit=50 * GIB)
    assert judge(facts).evidence[0].startswith("10.0 GiB was free in all")
    assert (
        judge(replace(facts, requested=10 * GIB + 512 * MIB))
        .evidence[0]
        .startswith("under the limit of 50.0 GiB, 10.0 GiB")
    )


def test_a_limit_is_not_guessed_on_a_full_device() -> None:
    """The driver's last megabytes cannot always be had."""
    facts = Facts(32 * MIB, driver_free=41 * MIB, size=4 * GIB, reserved=2 * GIB, allocated=2 * GIB)
    assert judge(facts).cause is Cause.UNKNOWN
    assert judge(replace(facts, driver_free=410 * MIB)).cause is Cause.LIMIT


def test_sums_alone_prove_fragmentation_and_say_what_they_lack() -> None:
    found = judge(DEVICE)
    assert found.evidence[0] == "11.0 GiB was free in all, enough for 2.00 GiB, but not in one piece"
    assert "largest free block" in found.missing[0]
    assert judge(replace(DEVICE, largest_free_block=GIB)).missing == ()


def test_a_close_call_on_rounded_figures_is_told() -> None:
    close = replace(DEVICE, requested=11 * GIB - 4 * MIB, precision=5 * MIB)
    assert "5.00 MiB" in judge(close).missing[-1]
    assert len(judge(replace(close, requested=GIB)).missing) < len(judge(close).missing)


def test_a_device_that_is_nearly_full_is_told_as_such() -> None:
    full = replace(DEVICE, free_cached=3 * GIB, reserved=63 * GIB, size=65 * GIB, limit=65 * GIB, driver_free=0)
    assert "nearly full" in judge(full).evidence[-1]
    assert judge(full).next_step.startswith("ask for less as well; ")
    assert "nearly full" not in " ".join(judge(DEVICE).evidence)


def test_the_driver_s_own_failure_has_its_own_advice() -> None:
    found = judge(Facts(None, allocator="driver"))
    assert (found.cause, "leave the driver room" in found.next_step) == (Cause.UNKNOWN, True)


def test_expandable_segments_are_not_advised_twice() -> None:
    assert "expandable_segments:True" in judge(DEVICE).next_step
    assert "already" in judge(replace(DEVICE, expandable=True)).next_step


def test_every_cause_has_a_next_step_for_every_allocator() -> None:
    allocators = {allocator for _, allocator in NEXT_STEPS}
    assert set(NEXT_STEPS) == {(cause.value, allocator) for cause in Cause for allocator in allocators}
    assert {rule.cause for rule in RULES} == set(Cause)


sizes = st.integers(0, 100 * GIB)
BYTES = [field.name for field in fields(Facts) if field.type == "int | None" and field.name != "requested"]
facts_of_any_kind = st.builds(
    Facts,
    requested=st.none() | st.integers(1, 1 << 60),
    precision=st.integers(0, MIB),
    refused_by_limit=st.booleans(),
    expandable=st.none() | st.booleans(),
    **{name: st.none() | sizes for name in BYTES},
)


@given(facts_of_any_kind)
def test_every_set_of_facts_has_a_verdict(facts: Facts) -> None:
    found = judge(facts)
    assert found.evidence
    assert found.next_step
    assert all("{" not in text for text in (*found.evidence, *found.missing))


@given(need=st.integers(1, 100 * GIB), free=sizes, largest=sizes)
def test_with_both_totals_known_the_definition_decides(need: int, free: int, largest: int) -> None:
    assume(largest <= free)
    expected = Cause.UNKNOWN if need <= largest else Cause.FRAGMENTATION if need <= free else Cause.CAPACITY
    found = judge(Facts(need, free_total=free, largest_allocatable=largest))
    assert found.cause is expected
    assert "rounded" not in " ".join(found.missing)


@st.composite
def failures(draw: st.DrawFn) -> Facts:
    """Whole and consistent facts, by which nothing at all could be served."""
    active, cached, free, others = (draw(sizes) for _ in range(4))
    size = active + cached + free + others + GIB
    return Facts(
        requested=draw(st.integers(1, 50 * GIB)),
        largest_allocatable=0,
        free_cached=cached,
        driver_free=free,
        size=size,
        limit=draw(st.just(size) | st.integers(active + cached, size)),
        reserved=active + cached,
        active=active,
        others=others,
    )


@given(failures())
def test_a_cause_is_gone_once_it_is_cured(facts: Facts) -> None:
    free, others = facts.driver_free or 0, facts.others or 0
    cured = {
        Cause.LIMIT: replace(facts, limit=facts.size),
        Cause.NEIGHBOURS: replace(facts, driver_free=free + others, others=0),
        Cause.FRAGMENTATION: replace(facts, largest_allocatable=facts.requested),
        Cause.CAPACITY: replace(facts, requested=1, free_cached=1),
    }
    cause = judge(facts).cause
    assert judge(cured[cause]).cause is not cause


@given(failures())
def test_more_free_memory_never_turns_fragmentation_into_capacity(facts: Facts) -> None:
    assume(judge(facts).cause is Cause.FRAGMENTATION)
    freed = min(facts.active or 0, GIB)
    more = replace(facts, active=(facts.active or 0) - freed, free_cached=(facts.free_cached or 0) + freed)
    assert judge(more).cause is Cause.FRAGMENTATION
