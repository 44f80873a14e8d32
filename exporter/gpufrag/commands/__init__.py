"""One module per command. Importing this package imports none of them."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A module of `commands` with `add_arguments(parser)` and `run(options) -> exit code`."""

    name: str
    help: str
    example: str

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")


COMMANDS = (
    Command("run", "run a job with the agent in its processes", "gpufrag run -- torchrun --nproc-per-node 8 train.py"),
    Command("serve", "run the sidecar: metrics of all ranks, and a web page", "gpufrag serve --port 9836"),
    Command("attach", "load the agent into a running process", "gpufrag attach 4711"),
    Command("top", "show all ranks of a host in the terminal", "gpufrag top --filter 'ratio>4'"),
    Command(
        "install-agent", "copy the agent to a folder, for images without gpufrag", "gpufrag install-agent /gpufrag"
    ),
    Command("record", "record some steps of a running job", "gpufrag record --rank 0 --steps 3 -o steps.pickle"),
    Command("defragment", "make free memory of a running job usable again", "gpufrag defragment --all-ranks --plan"),
    Command("measure", "print all figures of a memory snapshot", "gpufrag measure snapshot.pickle --limit 40GiB"),
    Command("fit", "find the smallest memory a recorded job needs", "gpufrag fit snapshot.pickle --other 20GiB"),
    Command("explain", "name what pins memory in a snapshot, and what to change", "gpufrag explain snapshot.pickle"),
    Command("diff", "compare two snapshots of a process", "gpufrag diff before.pickle after.pickle"),
    Command("timeline", "show memory over a recorded run", "gpufrag timeline snapshot.pickle"),
    Command("whatif", "compare allocator settings on a recorded run", "gpufrag whatif snapshot.pickle --limit 40GiB"),
    Command("replay", "replay a recorded run and print the final heap", "gpufrag replay trace.json.gz --limit 8GiB"),
    Command("oom", "list, show and explain out-of-memory errors", "gpufrag oom explain train.log"),
    Command("restarter", "restart fragmented jobs when an alert fires", "gpufrag restarter --config restarter.yaml"),
    Command("doctor", "find what keeps metrics, alerts or restarts from working", "gpufrag doctor --prometheus URL"),
    Command("mixin", "generate rules, alerts and dashboards", "gpufrag mixin build --out mixin"),
    Command("check-config", "validate a sidecar config file", "gpufrag check-config gpufrag.yaml"),
    Command("healthcheck", "check that the sidecar of this container answers", "gpufrag healthcheck"),
    Command("completion", "print shell completions", "source <(gpufrag completion bash)"),
    Command("demo", "run two simulated ranks, a sidecar and a live table", "gpufrag demo --duration 20s --once"),
    Command("simulate-fleet", "serve metrics of many simulated ranks", "gpufrag simulate-fleet --jobs 9 --ranks 64"),
)
