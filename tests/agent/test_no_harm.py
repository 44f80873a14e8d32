"""The agent does no harm: each of its rules has tests, and no part of it contains what the rules forbid."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufrag.attach.agent_copy.modules import agent_files
from gpufrag.commands.run import PACKAGE
from helpers import TESTS

RULES = {
    "imports no framework": """agent/test_arrival.py::test_finding_torch_does_not_import_it
        agent/test_no_harm.py::test_no_part_imports_a_framework""",
    "does not initialise CUDA": """agent/test_torch_source.py::test_nothing_is_read_before_cuda_is_initialised
        agent/test_torch_oom.py::test_observer_is_attached_at_cuda_initialisation
        agent/test_torch_history.py::test_cuda_is_not_initialised_for_a_recording""",
    "does not allocate, synchronise, free or reset": """
        agent/test_no_harm.py::test_only_known_parts_name_what_changes_a_device
        agent/test_torch_source.py::test_source_only_reads
        cuda_torch/test_step_recording_cuda.py::test_torchs_peaks_are_left_alone""",
    "sleeps in launchers, workers and children": """agent/test_lifecycle.py::test_process_without_cuda_has_no_thread
        agent/test_real_torch.py::test_torchrun_on_cpu_has_no_agent
        agent/test_real_torch.py::test_data_loader_workers_have_no_agent""",
    "leaves a captured step alone": """agent/test_sampler.py::test_graph_capture_is_left_alone
        agent/test_torch_source.py::test_unknown_capture_state_is_not_safe
        cuda_torch/test_agent_cuda.py::test_captured_step_is_not_sampled_and_later_ones_are""",
    "breaks no capture in another thread": """
        agent/test_torch_backends.py::test_cuda_malloc_async_is_read_between_steps_only
        cuda_torch/test_agent_cuda.py::test_snapshots_during_a_capture_do_not_break_it
        cuda_torch/test_step_recording_cuda.py::test_recording_does_not_break_a_graph_capture""",
    "reads no unused device": """agent/test_torch_source.py::test_device_without_context_is_not_touched
        agent/test_torch_source.py::test_device_without_reserved_memory_is_left_out""",
    "reads the cheap figures once a second": "agent/test_sampler.py::test_cheap_figures_are_read_every_second",
    "keeps within its budget": """agent/test_schedule.py::test_spacing_keeps_the_cost_within_the_budget
        agent/test_schedule.py::test_spacing_is_at_least_the_interval
        agent/test_sampler.py::test_time_spent_in_measuring_counts_as_cost
        agent/test_sampler.py::test_start_of_a_recording_counts_as_cost
        agent/test_torch_source.py::test_snapshot_has_no_trace_if_torch_can_omit_it""",
    "counts waits as stall and samples more rarely then": """
        agent/test_sampler.py::test_long_wait_makes_snapshots_and_readings_rarer
        agent/test_leak_watch.py::test_reading_that_waited_is_paid_for""",
    "records one step per window": """agent/test_sampler.py::test_each_window_has_one_recording
        agent/test_sampler.py::test_process_without_steps_records_slices
        agent/test_schedule.py::test_process_without_steps_is_sampled_at_a_random_phase""",
    "bounds a recording": """agent/test_step_recorder.py::test_lost_recording_is_counted_and_not_read
        agent/test_step_recorder.py::test_step_limit_follows_the_last_step
        agent/test_sampler.py::test_endless_step_is_dropped_by_the_timer""",
    "never touches the program's history": """agent/test_torch_history.py::test_history_of_the_program_is_never_touched
        agent/test_torch_history.py::test_programs_call_during_our_step_wins
        agent/test_torch_history.py::test_torch_is_patched_only_while_a_step_is_recorded
        agent/test_schedule.py::test_history_in_use_is_not_hastened
        agent/test_sampler.py::test_history_in_use_makes_snapshots_ten_times_rarer""",
    "pauses all ranks in the same step": "agent/test_schedule.py::test_ranks_that_step_together_pause_in_the_same_step",
    "hooks into torch only where that is safe": """
        agent/test_torch_oom.py::test_observer_is_used_only_if_every_device_gets_it
        agent/test_torch_history.py::test_first_call_before_2_8_has_its_own_thread
        agent/test_torch_lacking.py::test_table_has_every_function_used""",
    "counts and logs its errors and raises none": """
        wire/test_interrupts.py::test_first_error_of_each_source_is_logged
        agent/test_sampler.py::test_error_at_a_boundary_is_counted_and_not_raised
        agent/test_oom_reporter.py::test_failure_in_a_report_is_counted_and_not_raised
        agent/test_torch_history.py::test_error_of_ours_does_not_stop_the_programs_call
        agent/test_arrival.py::test_no_exception_of_ours_reaches_the_program""",
    "loses only what needs a missing function": """
        agent/test_torch_lacking.py::test_missing_function_loses_only_its_figures
        agent/test_torch_lacking.py::test_unknown_statistics_lose_only_their_figures""",
    "survives fork, spawn, torchrun and exec": """agent/test_lifecycle.py::test_forked_child_has_no_agent
        agent/test_torch_history.py::test_forked_child_drops_the_recording_without_a_call
        injection/test_launchers.py::test_each_child_of_multiprocessing_has_an_agent
        injection/test_torch_launchers.py::test_elastic_restart_brings_new_agents
        agent/test_lifecycle.py::test_exec_takes_over_file_and_socket""",
    "survives every end of the interpreter": """
        agent/test_lifecycle.py::test_exit_leaves_a_last_sample_and_no_socket
        agent/test_lifecycle.py::test_exit_is_as_without_agent
        agent/test_sampler.py::test_recording_ends_with_the_agent""",
    "survives a second copy of itself": """injection/test_shim.py::test_two_copies_make_one_agent
        agent/test_lifecycle.py::test_initialisations_of_cuda_start_one_agent""",
}
"""What the agent promises, and the tests that hold it to it."""
PROOFS = sorted({proof for proofs in RULES.values() for proof in proofs.split()})
PARTS = [*agent_files(PACKAGE), Path("attach", "payload.py")]
FRAMEWORKS = {"torch", "jax", "jaxlib", "tensorflow"}
CHANGES = re.compile(
    "synchronize|empty_?cache|reset_(?:peak|accumulated|max)|_lazy_init$|cuda\\.init$|set_device|set_per_process"
    "|_record_memory_history|raw_alloc|raw_delete|caching_allocator_",
    re.IGNORECASE,
)
"""Names of torch's that would wait for a device, allocate on it, free, reset or set something."""
ALLOWED = {
    "agent/torch/anchor.py": {"cuda.caching_allocator_alloc", "cuda.caching_allocator_delete"},
    "agent/torch/history.py": {
        "cuda.memory._record_memory_history",
        "_cuda_record_memory_history",
        "_cuda_record_memory_history_legacy",
    },
    "model/trace/events.py": {"empty_cache"},  # a name in a trace
    "model/defragment.py": {"empty_cache"},
    "agent/torch/defragment.py": {"empty_cache", "synchronize"},  # runs only when its user asks for it
}


@pytest.mark.parametrize("proof", PROOFS)
def test_each_rule_has_its_tests(proof: str) -> None:
    file, _, test = proof.partition("::")
    assert f"def {test}(" in (TESTS / file).read_text(encoding="utf-8")


def nodes(path: Path) -> Iterator[ast.AST]:
    """Without docstrings, which may name what is not done."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    prose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    yield from (node for node in ast.walk(tree) if node not in prose)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""] if node.level == 0 else []
    return [name.name for name in node.names] if isinstance(node, ast.Import) else []


def named(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        return node.value
    return ""


@pytest.mark.parametrize("path", PARTS, ids=str)
def test_no_part_imports_a_framework(path: Path) -> None:
    found = {name.partition(".")[0] for node in nodes(path) for name in imported(node)}
    assert found & FRAMEWORKS == ({"torch"} if path == Path("__init__.py") else set())  # gpufrag.defragment() does
    assert not any(named(node) in ("import_module", "__import__") for node in nodes(path))


@pytest.mark.parametrize("path", PARTS, ids=str)
def test_only_known_parts_name_what_changes_a_device(path: Path) -> None:
    found = {name for node in nodes(path) if (name := named(node)) and CHANGES.search(name)}
    assert found == ALLOWED.get(str(path), set())


@pytest.mark.parametrize("name", ["cuda.synchronize", "cuda.empty_cache", "cuda.reset_peak_memory_stats", "cuda.init"])
def test_forbidden_names_would_be_found(name: str) -> None:
    assert CHANGES.search(name)
