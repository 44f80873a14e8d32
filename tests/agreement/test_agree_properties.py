"""Whatever the order of steps and words: all save at one step, or none does, and nobody stands still for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agreement.simulated_ranks import TERMS, Job, SimulatedRank
from gpufrag.checkpoint.records import NotSaved, Saved

FOREVER = 100_000.0
sizes = st.integers(1, 4)


def _job(data: st.DataObject, size: int, lossy: bool) -> Job:
    ranks = [
        SimulatedRank(rank, size, data.draw(st.integers(0, 5)), data.draw(st.sampled_from([0.05, 0.5, 3.0])))
        for rank in range(size)
    ]

    def meanwhile(ask, rank) -> bool:
        """Any rank may make some steps, whoever is spoken to; and what is lost is lost before the word to save."""
        for one in data.draw(st.lists(st.sampled_from(ranks), max_size=4)):
            one.tick(job.now)
        return lossy and ask.command not in ("confirm", "status", "release") and data.draw(st.integers(0, 19)) == 0

    job = Job(ranks, meanwhile)
    return job


def _go_on(job: Job) -> None:
    """Whatever was promised, no rank stands still for longer than it said."""
    goal = max(rank.step or 0 for rank in job.ranks) + 200
    for _ in range(400):
        job.now += TERMS.hold
        job.step()
    assert all((rank.step or 0) > goal for rank in job.ranks)


@given(data=st.data(), size=sizes)
def test_all_or_none(data: st.DataObject, size: int) -> None:
    job = _job(data, size, lossy=True)
    try:
        result: Saved | None = job.run()
    except NotSaved:
        assert [rank.saved_at for rank in job.ranks] == [[]] * size
    else:
        assert result is not None
        assert [rank.saved_at for rank in job.ranks] == [[result.step]] * size
    _go_on(job)


@given(data=st.data(), size=sizes, questions=st.integers(0, 12))
def test_whoever_leads_it_may_die(data: st.DataObject, size: int, questions: int) -> None:
    """Between two of its commands: all save at one step or none does, and nobody is held for ever."""
    job = _job(data, size, lossy=False)
    job.run(TERMS, most=questions)
    _go_on(job)
    saved = [rank.saved_at for rank in job.ranks]
    told = "confirm" in job.asked  # a word that was given is kept, however late the step comes
    assert all(len(steps) == 1 for steps in saved) if told else saved == [[]] * size
    assert len({step for steps in saved for step in steps}) <= 1
