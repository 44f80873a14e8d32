"""Inferred pools that the replay of a trace refutes."""

import json

from gpufrag.model.trace.verification import difference
from gpufrag.model.trace.whatif import begin, read_run
from gpufrag.snapshot_file.recording import read_recording, read_run_of
from helpers import TESTS

CASE = TESTS / "fixtures" / "replays" / "repaired-released.json"


def test_pool_that_the_replay_refutes_is_changed(tmp_path) -> None:
    """Without a change, the replay releases a segment of a MemPool in a flush of the default pool."""
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(json.loads(CASE.read_text())["recording"]))
    recording = read_recording(path)
    runs = (
        read_run(recording.events, recording.end, recording.before, recording.limit),
        read_run_of(recording, recording.limit),
    )
    found = []
    for run in runs:
        seen = []
        replay = begin(run, run.end.settings, run.recorded_limit, observe=seen.append)
        replay.run()
        found.append(difference(recording.events, seen, replay, run))
    assert "segment_free" in str(found[0])
    assert found[1] is None
    assert runs[0].pools != runs[1].pools
