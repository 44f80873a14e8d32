"""The verdict on a failed allocation: each rule, their order, and what is listed as unknown."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpufrag.model.advice import NEXT_STEPS, OTHER_HARDWARE, PLATFORMS, next_step
from gpufrag.model.verdict import RULES, Cause, Facts, contradiction, judge

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
"""11 GiB free, in pieces. Each case below changes what it is about."""
FULL = replace(DEVICE, free_cached=0, reserved=78 * GIB, allocated=78 * GIB, active=78 * GIB)
HALF = replace(FULL, reserved=40 * GIB, allocated=40 * GIB, active=40 * GIB)


BOTH = replace(
    FULL, requested=10 * GIB, limit=20 * GIB, reserved=14 * GIB, allocated=14 * GIB, active=14 * GIB, others=65 * GIB
)
TIGHT = replace(
    DEVICE, driver_free=50 * GIB, limit=20 * GIB, reserved=20 * GIB - 3 * MIB, requested=2 * MIB, allocated=GIB
)
"""By the printed limit of 20.00 GiB the request just fits, and the driver had plenty."""
LOW_LIMIT = replace(FULL, limit=79 * GIB, driver_free=20 * GIB, size=100 * GIB)
LAST_4_MIB = replace(FULL, driver_free=4 * MIB, requested=4 * MIB)
"""The driver does not allocate its last 2 MiB."""


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
        (Facts(80 * GIB, size=80 * GIB), Cause.UNKNOWN),
        (Facts(1 << 60), Cause.CAPACITY),
        (Facts(1 << 50), Cause.CAPACITY),
        (LOW_LIMIT, Cause.LIMIT),
        (replace(LOW_LIMIT, requested=30 * GIB), Cause.CAPACITY),  # more than fits without the limit
        (Facts(GIB, refused_by_limit=True), Cause.LIMIT),
        (replace(HALF, others=39 * GIB), Cause.NEIGHBOURS),
        (BOTH, Cause.LIMIT),
        (replace(BOTH, requested=6 * GIB + 1), Cause.LIMIT),
        (replace(BOTH, requested=6 * GIB), Cause.NEIGHBOURS),
        (TIGHT, Cause.UNKNOWN),
        (replace(TIGHT, precision=MIB), Cause.UNKNOWN),
        (replace(TIGHT, precision=5 * MIB), Cause.FRAGMENTATION),
        (LAST_4_MIB, Cause.CAPACITY),
        (replace(LAST_4_MIB, free_cached=4 * MIB, reserved=78 * GIB + 4 * MIB), Cause.FRAGMENTATION),
        (Facts(None), Cause.UNKNOWN),
        (Facts(GIB), Cause.UNKNOWN),
        (replace(FULL, driver_free=3 * GIB, size=81 * GIB, limit=81 * GIB), Cause.UNKNOWN),
        (Facts(GIB, reserved=10 * GIB, allocated=8 * GIB), Cause.FRAGMENTATION),
        (Facts(2 * GIB, reserved=10 * GIB, allocated=8 * GIB), Cause.FRAGMENTATION),
        (Facts(3 * GIB, reserved=10 * GIB, allocated=8 * GIB), Cause.UNKNOWN),
    ],
)
def test_facts_give_cause(facts: Facts, cause: Cause) -> None:
    assert judge(facts).cause is cause


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"driver_free": 85 * GIB}, "free memory (85.0 GiB) exceeds the device's size"),
        ({"reserved": 90 * GIB}, "reserved memory (90.0 GiB)"),
        ({"allocated": 90 * GIB, "reserved": None}, "allocated memory (90.0 GiB) exceeds the device's size"),
        ({"allocated": 71 * GIB}, "allocated memory (71.0 GiB) exceeds reserved memory (70.0 GiB)"),
        ({"driver_free": 11 * GIB}, "free and reserved memory together (81.0 GiB)"),
    ],
)
def test_contradictory_figures_are_unknown(change: dict[str, int | None], named: str) -> None:
    found = judge(replace(DEVICE, requested=100 * GIB, **change))
    assert found.cause is Cause.UNKNOWN
    assert f"contradict each other: {named}" in found.evidence[0]


@pytest.mark.parametrize(
    "most",
    [
        replace(DEVICE, allocated=70 * GIB + 10 * MIB, precision=5 * MIB),
        replace(DEVICE, driver_free=10 * GIB + (64 << 20)),
    ],
    ids=["rounding", "read one after the other"],
)
def test_contradiction_within_tolerance_is_none(most: Facts) -> None:
    assert contradiction(most) is None
    more = {"allocated": 70 * GIB + 10 * MIB + 1} if most.precision else {"driver_free": 10 * GIB + (64 << 20) + 1}
    assert contradiction(replace(most, **more)) is not None


def test_unaccounted_memory_names_the_allowance_and_the_doubt() -> None:
    found = judge(replace(HALF, others=None))
    assert (found.cause, found.missing) == (
        Cause.NEIGHBOURS,
        ("who holds the unaccounted memory: other processes, or a larger context of this process",),
    )
    assert "38.0 GiB of unaccounted memory: 39.0 GiB is in use outside this allocator, minus 1.00" in found.evidence[0]
    small = judge(replace(FULL, requested=GIB + 512 * MIB, others=None))
    assert (small.cause, "1.00 GiB outside" in small.missing[0]) == (Cause.CAPACITY, True)


def test_neighbours_many_times_the_request_come_before_fragmentation() -> None:
    crowded = replace(HALF, requested=20 * MIB, driver_free=0, size=79 * GIB, limit=None, others=38 * GIB)
    crowded = replace(crowded, reserved=40 * GIB, allocated=39 * GIB, active=39 * GIB, free_cached=GIB)
    found = judge(crowded)
    assert found.cause is Cause.NEIGHBOURS
    assert "nvidia-smi" in found.next_step
    assert "expandable_segments:True" in found.next_step
    assert judge(replace(crowded, requested=4 * GIB)).cause is not Cause.FRAGMENTATION
    assert judge(replace(crowded, others=200 * MIB)).cause is Cause.FRAGMENTATION  # ten times, but few of the device
    assert judge(replace(crowded, others=4 * GIB, requested=GIB)).cause is Cause.FRAGMENTATION
    limited = judge(replace(crowded, limit=40 * GIB))
    assert limited.cause is Cause.FRAGMENTATION
    guessed = judge(replace(crowded, others=None))
    assert (guessed.cause, "may hold 38.0 GiB" in guessed.next_step) == (Cause.FRAGMENTATION, True)


def test_shares_of_the_device_have_exact_bounds() -> None:
    crowded = replace(
        HALF, requested=20 * MIB, driver_free=35 * GIB, free_cached=4 * GIB, reserved=40 * GIB, active=36 * GIB
    )
    crowded = replace(crowded, driver_free=0, largest_free_block=MIB)
    assert judge(replace(crowded, others=4 * GIB)).cause is Cause.FRAGMENTATION
    assert judge(replace(crowded, others=4 * GIB + 1)).cause is Cause.NEIGHBOURS
    assert "nearly full" not in " ".join(judge(replace(crowded, others=0)).evidence)
    assert "nearly full" in " ".join(judge(replace(crowded, others=0, free_cached=4 * GIB - 1)).evidence)
    unlimited = Facts(32 * MIB, driver_free=4 * GIB, size=80 * GIB, reserved=2 * GIB, allocated=2 * GIB)
    assert "a limit may have refused it" in judge(unlimited).evidence[0]
    assert "a limit" not in judge(replace(unlimited, driver_free=4 * GIB - 1)).evidence[0]


def test_impossible_request_lacks_nothing() -> None:
    assert judge(Facts(1 << 60)).missing == ()
    assert judge(Facts(1 << 50)).missing == ()


def test_refused_free_memory_without_known_limit_is_unknown() -> None:
    found = judge(Facts(GIB, driver_free=30 * GIB, size=80 * GIB, reserved=10 * GIB, allocated=10 * GIB))
    assert found.cause is Cause.UNKNOWN
    assert "a limit may have refused it" in found.evidence[0]
    assert "limit" in found.missing[0]


def test_limit_below_what_is_held_leaves_the_cache() -> None:
    facts = replace(DEVICE, limit=50 * GIB)
    assert judge(facts).evidence[0].startswith("10.0 GiB was free in total")
    more = judge(replace(facts, requested=10 * GIB + 512 * MIB))
    assert more.evidence[0].startswith("10.0 GiB was left below the limit of 50.0 GiB")


def test_limit_is_not_suspected_on_full_device() -> None:
    facts = Facts(32 * MIB, driver_free=41 * MIB, size=4 * GIB, reserved=2 * GIB, allocated=2 * GIB)
    assert "limit" not in judge(facts).evidence[0]
    assert "limit" in judge(replace(facts, driver_free=4 * GIB // 20 + 1)).evidence[0]


def test_sums_without_layout_state_what_is_missing() -> None:
    found = judge(DEVICE)
    assert found.evidence[0] == "11.0 GiB was free in total, enough for 2.00 GiB, but in no single piece"
    assert len(found.missing) == 1
    assert "another stream or a private pool" in found.missing[0]
    assert judge(replace(DEVICE, largest_free_block=GIB)).missing == ()
    beyond_cache = replace(DEVICE, limit=None, requested=10 * GIB + 512 * MIB)
    assert "limit" in judge(beyond_cache).missing[1]
    assert len(judge(replace(beyond_cache, requested=10 * GIB)).missing) == 1


@pytest.mark.parametrize(("size", "doubt"), [(None, "the size of the device"), (80 * GIB, "outside this allocator")])
def test_capacity_states_what_could_change_it(size: int | None, doubt: str) -> None:
    facts = replace(FULL, size=size, others=None, requested=3 * GIB // 2)
    assert doubt in judge(facts).missing[0]
    assert judge(replace(FULL, others=0)).missing == ()


def test_close_call_on_rounded_figures_is_stated() -> None:
    close = replace(DEVICE, requested=11 * GIB - 4 * MIB, precision=5 * MIB)
    assert "5.00 MiB" in judge(close).missing[-1]
    assert len(judge(replace(close, requested=GIB)).missing) < len(judge(close).missing)


def test_close_call_has_an_exact_bound() -> None:
    doubt = "could change the verdict"
    close = replace(DEVICE, requested=11 * GIB - 20 * MIB, precision=5 * MIB, largest_free_block=GIB)
    most = close.ceiling() or 0
    assert doubt in " ".join(judge(replace(close, requested=most - 20 * MIB)).missing)
    assert doubt not in " ".join(judge(replace(close, requested=most - 20 * MIB - 1)).missing)
    assert doubt not in " ".join(judge(replace(close, requested=most, precision=0)).missing)


@pytest.mark.parametrize(
    ("name", "words", "at_zero"),
    [
        ("captive", "is free in private pools", False),
        ("others", "other processes use", False),
        ("driver_free", "the driver has", True),
        ("largest_free_block", "the largest free block is", True),
    ],
)
def test_figure_of_zero_is_evidence_unless_it_is_foreign(name: str, words: str, at_zero: bool) -> None:
    found = {size: " ".join(judge(replace(DEVICE, **{name: size})).evidence) for size in (0, 4096, None)}
    assert [words in found[size] for size in (0, 4096, None)] == [at_zero, True, False]


def test_nearly_full_device_is_stated() -> None:
    full = replace(DEVICE, free_cached=3 * GIB, reserved=63 * GIB, size=65 * GIB, limit=65 * GIB, driver_free=0)
    assert "nearly full" in judge(full).evidence[-1]
    assert judge(full).next_step.startswith("request less; ")
    assert "nearly full" not in " ".join(judge(DEVICE).evidence)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (DEVICE, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        (replace(DEVICE, expandable=True), "already on"),
        (replace(DEVICE, platform="hip"), "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True if"),
        (replace(DEVICE, platform="hip", expandable_supported=False), "no expandable segments: set PYTORCH_HIP_ALLOC"),
        (replace(DEVICE, platform="npu"), "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"),
        (replace(DEVICE, platform="xpu"), "torch.xpu.empty_cache()"),
        (replace(HALF, others=39 * GIB, platform="hip"), "amd-smi"),
        (replace(HALF, others=39 * GIB), "nvidia-smi"),
        (Facts(None, allocator="driver"), "leave room for the driver"),
        (Facts(GIB, allocator="driver", platform="hip"), "amd-smi"),
    ],
)
def test_advice_fits_hardware_and_settings(facts: Facts, words: str) -> None:
    assert words in judge(facts).next_step


def test_every_cause_has_advice_for_every_allocator_and_platform() -> None:
    allocators = {allocator for _, allocator in NEXT_STEPS}
    assert set(NEXT_STEPS) == {(cause.value, allocator) for cause in Cause for allocator in allocators}
    assert {rule.cause for rule in RULES} == set(Cause)
    assert {platform for *_, platform in OTHER_HARDWARE} < set(PLATFORMS)
    for platform in (*PLATFORMS, "tpu"):  # tpu: not in the table
        for cause, allocator in NEXT_STEPS:
            text = next_step(cause, Facts(None, allocator=allocator, platform=platform))
            assert "{" not in text
            assert platform not in ("hip", "xpu", "npu") or ("nvidia-smi" not in text and "CUDA_ALLOC" not in text)


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
def test_any_facts_have_a_verdict(facts: Facts) -> None:
    found = judge(facts)
    assert found.evidence
    assert found.next_step
    assert all("{" not in text for text in (*found.evidence, *found.missing))


@given(need=st.integers(1, 100 * GIB), free=sizes, largest=sizes)
def test_both_totals_known_decide(need: int, free: int, largest: int) -> None:
    assume(largest <= free)
    expected = Cause.UNKNOWN if need <= largest else Cause.FRAGMENTATION if need <= free else Cause.CAPACITY
    found = judge(Facts(need, free_total=free, largest_allocatable=largest))
    assert found.cause is expected
    assert "rounded" not in " ".join(found.missing)


@st.composite
def failures(draw: st.DrawFn) -> Facts:
    """Complete and consistent facts, under which nothing could be served."""
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
def test_cured_cause_is_not_given_again(facts: Facts) -> None:
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
def test_more_free_memory_keeps_fragmentation(facts: Facts) -> None:
    assume(judge(facts).cause is Cause.FRAGMENTATION)
    freed = min(facts.active or 0, GIB)
    more = replace(facts, active=(facts.active or 0) - freed, free_cached=(facts.free_cached or 0) + freed)
    assert judge(more).cause is Cause.FRAGMENTATION
