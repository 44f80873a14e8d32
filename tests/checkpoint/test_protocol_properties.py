"""For any order of steps and commands, all ranks save at one step or none does, and none waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpoint.simulated_ranks import TERMS, Job, SimulatedRank
from gpufrag.checkpoint.protocol import CheckpointFailed, Saved

FOREVER = 100_000.0
sizes = st.integers(1, 4)


def _job(data: st.DataObject, size: int, lossy: bool) -> Job:
    ranks = [
        SimulatedRank(rank, size, data.draw(st.integers(0, 5)), data.draw(st.sampled_from([0.05, 0.5, 3.0])))
        for rank in range(size)
    ]

    def meanwhile(ask, rank) -> bool:
        """Before any delivery, any ranks may make steps; a command before `confirm` may be lost."""
        for one in data.draw(st.lists(st.sampled_from(ranks), max_size=4)):
            one.tick(job.now)
        return lossy and ask.name not in ("confirm", "status", "release") and data.draw(st.integers(0, 19)) == 0

    job = Job(ranks, meanwhile)
    return job


def _train_on(job: Job) -> None:
    """No rank waits longer than it promised."""
    goal = max(rank.step or 0 for rank in job.ranks) + 200
    for _ in range(400):
        job.now += TERMS.hold
        job.step()
    assert all((rank.step or 0) > goal for rank in job.ranks)


@given(data=st.data(), size=sizes)
def test_all_ranks_save_or_none(data, size):
    job = _job(data, size, lossy=True)
    try:
        result: Saved | None = job.run()
    except CheckpointFailed:
        assert [rank.saved_at for rank in job.ranks] == [[]] * size
    else:
        assert result is not None
        assert [rank.saved_at for rank in job.ranks] == [[result.step]] * size
    _train_on(job)


@given(data=st.data(), size=sizes, questions=st.integers(0, 12))
def test_dead_coordinator_leaves_all_or_none_saved(data, size, questions):
    """The coordinator may die between any two commands."""
    job = _job(data, size, lossy=False)
    job.run(TERMS, most=questions)
    _train_on(job)
    saved = [rank.saved_at for rank in job.ranks]
    confirmed = "confirm" in job.asked  # kept, however late the step comes
    assert all(len(steps) == 1 for steps in saved) if confirmed else saved == [[]] * size
    assert len({step for steps in saved for step in steps}) <= 1
