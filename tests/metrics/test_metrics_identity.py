"""Which labels a process has: unique, and the same for as long as it lives."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpufrag.metrics.identity import name_ranks
from gpufrag.metrics.view import RankView
from gpufrag.wire.sample import Identity, ProcessSample


def _process(pid, start, rank=None, alive=True, host="h"):
    return RankView(ProcessSample(Identity(host, pid, float(start), rank), 0.0), alive)


def _names(*views):
    """Labels by pid."""
    return {named.view.sample.identity.pid: named.labels for named in name_ranks(views)}


def test_a_rank_is_its_number():
    assert _names(_process(7, 1, rank=0)) == {7: {"rank": "0"}}


def test_a_process_without_a_rank_is_its_pid_even_when_alone():
    assert _names(_process(7, 1)) == {7: {"process": "7"}}


def test_of_two_that_claim_a_rank_the_first_keeps_its_name():
    assert _names(_process(8, 2, rank=0), _process(7, 1, rank=0)) == {
        7: {"rank": "0"},
        8: {"rank": "0", "process": "8"},
    }


def test_a_successor_takes_the_name_of_the_dead():
    dead, successor = _process(7, 1, rank=0, alive=False), _process(8, 2, rank=0)
    assert _names(dead, successor) == {8: {"rank": "0"}, 7: {"rank": "0", "process": "7"}}


def test_of_the_dead_the_last_has_the_name():
    first, last = _process(7, 1, rank=0, alive=False), _process(8, 2, rank=0, alive=False)
    assert _names(first, last)[8] == {"rank": "0"}


def test_equal_pids_of_two_containers_are_told_apart():
    first, second = name_ranks([_process(1, 10, host="a"), _process(1, 20, host="b")])
    assert [first.labels, second.labels] == [{"process": "1"}, {"process": "1-20.0"}]


def test_a_process_seen_twice_is_one():
    assert len(name_ranks([_process(7, 1, rank=0), _process(7, 1, rank=0)])) == 1


def test_ranks_come_in_numerical_order_and_the_rankless_last():
    named = name_ranks([_process(1, 1), _process(2, 1, rank=10), _process(3, 1, rank=9)])
    assert [n.labels for n in named] == [{"rank": "9"}, {"rank": "10"}, {"process": "1"}]


PROCESSES = st.lists(
    st.builds(
        _process,
        st.integers(1, 3),
        st.integers(0, 2),
        st.none() | st.integers(0, 2),
        st.booleans(),
        st.sampled_from("ab"),
    ),
    max_size=12,
)


@given(PROCESSES)
def test_everybody_has_a_name_of_their_own(views):
    named = name_ranks(views)
    assert len({tuple(sorted(n.labels.items())) for n in named}) == len(named)
    assert len(named) == len({(v.sample.identity.host, v.sample.identity.pid, v.sample.identity.start) for v in views})


@given(PROCESSES, st.randoms())
def test_the_order_of_the_files_changes_no_name(views, random):
    unique = list({(v.sample.identity.host, v.sample.identity.pid, v.sample.identity.start): v for v in views}.values())
    shuffled = random.sample(unique, len(unique))
    assert name_ranks(unique) == name_ranks(shuffled)


@given(PROCESSES)
def test_one_who_starts_later_renames_nobody_who_lives(views):
    living = [replace(view, alive=True) for view in views]
    before = {id(n.view): n.labels for n in name_ranks(living)}
    after = {id(n.view): n.labels for n in name_ranks([*living, _process(2, 99, rank=1)])}
    assert after.items() >= before.items()
