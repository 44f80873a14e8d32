"""A training process's part in a checkpoint: it stops at the promised step, saves, and waits for the other ranks.

Commands arrive over the control socket, in their own threads. The program's callback runs in the training thread,
between two steps. A defragmentation runs there too, on the same promise, so never at the same time. A process that
never calls `on_checkpoint` has no hook of its own: the agent's hook reports its steps.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from ..agent.steps import StepCounter
from ..agent.torch.api import TorchSurface
from ..errors import GpufragError, UsageError, one_line
from ..wire import codec
from ..wire.defragmentation import DefragmentOptions, Result
from ..wire.error_counter import ErrorCounter
from ..wire.interrupts import call_confined, let_through
from ..wire.sample import Identity
from ..wire.threads import start_thread
from .promise import Promise
from .protocol import ACTIONS, CHECKPOINT, COMMANDS, CONFIRMED, DEFRAGMENT, IDLE, PROMISED, Action, RankState

logger = logging.getLogger("gpufrag")
EXIT_CODE = 42
"""A rank that has saved for a restart ends with it; launchers take 0 for a finished job."""
EXIT_GRACE_S = 30.0
"""The program's exit handlers may take this long; a process group may wait for ranks that are gone."""
MAX_WAIT_S = 3600.0
MAX_ID = 100
MAX_ERROR = 300
"""Characters of the program's or torch's message in an answer."""
MOVE_WAIT_S = 2.0
"""The command for a checkpoint waits this long for a defragmentation that runs."""
NO_STEPS = "cannot see the steps: import torch before gpufrag.on_checkpoint, or call gpufrag.step_ended"
NO_MOVES = "only memory of PyTorch's CUDA allocator can be moved, in a process whose agent is running"
SEVERAL_THREADS = "several threads train in this process, so one may use memory while it moves"


@dataclass(frozen=True)
class CheckpointRequest:
    """The argument of the program's callback."""

    id: str
    """The same in all ranks."""
    step: int
    """The step that just ended: counted since `on_checkpoint`, or given to `step_ended`. The same in all ranks."""


Save = Callable[[CheckpointRequest], "str | os.PathLike[str] | None"]
Defragment = Callable[[DefragmentOptions], "tuple[Result, ...]"]
"""Runs between two steps. Raises GpufragError if nothing was moved, or everything was put back."""


@dataclass(frozen=True)
class _Fields:
    """The fields of a command; only `at` needs step, patience and hold, only `prepare` has options."""

    id: str
    step: int | None = None
    patience: float = 0.0
    hold: float = 0.0
    exit: bool = False
    options: DefragmentOptions = DefragmentOptions()


def end_process(code: int = EXIT_CODE) -> None:
    """End this process from its training thread."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # None, or closed
            stream.flush()
    if threading.current_thread() is not threading.main_thread():
        os._exit(code)  # SystemExit would only end this thread
    with suppress(RuntimeError):  # no thread is available
        start_thread(_exit_after, "gpufrag-exit", EXIT_GRACE_S, code)
    raise SystemExit(code)


def _exit_after(seconds: float, code: int) -> None:
    time.sleep(seconds)
    os._exit(code)


def is_capturing() -> bool:
    """Return whether the current thread records a CUDA graph, which a save would break."""
    torch = _loaded_torch()
    if torch is None or not torch.ask("cuda.is_initialized"):
        return False
    return torch.ask("cuda.is_current_stream_capturing") is not False


def _loaded_torch() -> TorchSurface | None:
    """None for a lazily imported torch too, which would load at the first access to it."""
    return TorchSurface(sys.modules["torch"], ErrorCounter()) if "torch.cuda" in sys.modules else None


class Participant:
    """One process. `end` ends it from the training thread; `clock` is monotonic, in seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[], None] = end_process,
        capturing: Callable[[], bool] = is_capturing,
    ) -> None:
        self._clock, self._end, self._capturing = clock, end, capturing
        self._changed = threading.Condition()
        self._promise, self._steps = Promise(), StepCounter()
        self._save: Save | None = None
        self.defragment: Defragment | None = None
        """Set by the agent, if this process has memory that can be moved."""
        self.leaving = False
        """True once the process has saved and is about to end."""
        self._thread = 0
        self._hooked = self._explicit = self._several_threads = self._stays = False
        self._step: int | None = None
        self._ended_at: float | None = None
        self._step_seconds: float | None = None
        self._last_command_at = 0.0

    def register(self, save: Save, hooked: bool) -> None:
        """Call from the training thread. `hooked`: `optimizer_stepped` is called after each optimizer step."""
        if self._save is None:  # steps are counted from here on
            with self._changed:
                if self._promise.action is DEFRAGMENT and self._promise.target is not None:
                    self._promise.failed("the program called gpufrag.on_checkpoint", self._clock())
            self._steps, self._step, self._explicit = StepCounter(), None, False
        self._save, self._thread, self._hooked = save, threading.get_ident(), hooked

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Inside, the process does not end although it is released: it has to release the other ranks first."""
        with self._changed:
            self._stays = True
        try:
            yield
        finally:
            with self._changed:
                self._stays = False
                self._changed.notify_all()

    def optimizer_stepped(self, optimizer: object) -> None:
        """Ignores optimizers that step during the backward pass, which runs in another thread."""
        if self._save is None or self._explicit or threading.get_ident() != self._thread:
            return
        self._steps.note(optimizer)
        if self._steps.whole and self._steps.count != self._step:
            self._end_step(self._steps.count)

    def step_ended(self, step: int | None) -> None:
        """The program reports the end of a step; from now on, optimizer steps are ignored."""
        if not self._is_training_thread():
            return
        if step is None:
            step = (self._step or 0) + 1
        if not self._explicit:
            self._explicit, self._step = True, None
        self._end_step(step)

    def boundary(self, step: int) -> None:
        """The agent's hook has seen the end of a step, by its own count. The program's way of counting comes first.

        Raises only what a signal handler of the program raises.
        """
        if self._save is None and not self._explicit and self._is_training_thread():
            self._end_step(step)

    def _is_training_thread(self) -> bool:
        """Without a callback it is the thread in which the steps end."""
        this = threading.get_ident()
        if self._save is None and this != self._thread:
            alive = any(thread.ident == self._thread for thread in threading.enumerate())
            self._several_threads, self._thread = self._several_threads or alive, this
        return this == self._thread

    def state(self, identity: Identity) -> RankState:
        with self._changed:
            return self._state(identity)

    def command(
        self, name: str, request: Mapping[str, Any], identity: Identity, action: Action = CHECKPOINT
    ) -> dict[str, Any]:
        """Execute one of COMMANDS and return the rank's state.

        Raises UsageError for a wrong field, Unavailable for a checkpoint that has lapsed here.
        """
        fields = _parse(name, request)
        with self._changed:
            promise = self._promise
            if name == "prepare" and action is CHECKPOINT and promise.action is DEFRAGMENT:
                self._changed.wait_for(lambda: not promise.running, MOVE_WAIT_S)
            now = self._clock()
            if name == "prepare":
                promise.prepare(fields.id, now, action, fields.options if action is DEFRAGMENT else None)
            elif name == "at":
                promise.at(fields.id, fields.step or 0, self._step or 0, now, fields.patience, fields.hold)
            elif name == "confirm":
                promise.confirm(fields.id, now)
            elif name == "cancel":
                promise.cancel(fields.id)
            elif name == "release":
                promise.release(fields.id, fields.exit)
            if promise.id == fields.id:
                self._last_command_at = now
            self._changed.notify_all()
            return asdict(self._state(identity))

    def _state(self, identity: Identity) -> RankState:
        promise = self._promise
        promise.lapse(self._clock())
        obstacle = NO_STEPS if self._save and not (self._hooked or self._explicit) else None
        if promise.action is DEFRAGMENT:
            obstacle = NO_MOVES if self.defragment is None else SEVERAL_THREADS if self._several_threads else obstacle
        return RankState(
            host=identity.host,
            pid=identity.pid,
            rank=identity.rank,
            world_size=identity.world_size,
            id=promise.id,
            state=promise.state,
            callback=self._save is not None,
            step=self._step,
            step_seconds=self._step_seconds,
            target=promise.target,
            path=promise.path,
            error=promise.error or obstacle,
            results=promise.results,
        )

    def _end_step(self, step: int) -> None:
        with self._changed:  # so that this step is not promised just now
            now = self._clock()
            if self._ended_at is not None:
                latest, before = now - self._ended_at, self._step_seconds
                self._step_seconds = latest if before is None else before + (latest - before) / 8
            self._step, self._ended_at = step, now
            due = self._promise.state != IDLE and self._promise.is_due(step, now)
            promised = self._promise.id, self._promise.target
        if due:
            try:
                leave = self._wait_for_confirm(promised) and self._act(step)
            except BaseException:
                if self._promise.running:  # a signal handler of the program raised between the two
                    self._fail("the program was interrupted")
                raise
            self._ended_at = self._clock()
            if leave:
                self._end()

    def _act(self, step: int) -> bool:
        """Return whether to end the process."""
        if self._promise.action is DEFRAGMENT:
            self._run_defragmentation()
            return False
        return self._run_callback(step) and self._wait_for_release()

    def _wait_for_confirm(self, promised: tuple[str | None, int | None]) -> bool:
        """Return whether to act now. Another promise may have replaced this one meanwhile."""
        promise = self._promise
        with self._changed:
            self._changed.wait_for(
                lambda: (promise.id, promise.target) != promised or promise.state != PROMISED, promise.patience
            )
            if (promise.id, promise.target) != promised:
                return False
            promise.expired()
            promise.running = promise.state == CONFIRMED
            return promise.running

    def _run_defragmentation(self) -> None:
        defragment, options = self.defragment, self._promise.options
        try:
            if defragment is None or options is None:
                raise UsageError(NO_MOVES)  # the agent was stopped
            results = defragment(options)
        except GpufragError as error:
            self._fail(str(error))
        except Exception as error:
            let_through(error)
            self._fail(f"{type(error).__name__}: {one_line(str(error))[:MAX_ERROR]}")
        else:
            with self._changed:
                self._promise.defragmented(results, self._clock())
                self._changed.notify_all()

    def _run_callback(self, step: int) -> bool:
        """Return whether the callback saved. If it raises, the coordinator gets the error and training continues."""
        save, checkpoint = self._save, self._promise.id
        assert save is not None
        assert checkpoint is not None
        if self._capturing():
            self._fail("a CUDA graph was being captured")
            return False
        try:
            result = save(CheckpointRequest(checkpoint, step))
            path = None if result is None else os.fsdecode(result)
        except Exception as error:
            self._fail(f"the callback raised {type(error).__name__}: {error}")
            let_through(error)
            text = "gpufrag: the checkpoint callback failed at step %d; training continues"
            call_confined(logger.exception, text, step)
            return False
        with self._changed:
            self._last_command_at = self._clock()
            self._promise.saved(path)
            self._changed.notify_all()
        return True

    def _wait_for_release(self) -> bool:
        """Return whether to end. A rank that ended early would stop the others before they have saved.

        Commands extend the wait: the coordinator is alive and other ranks still save.
        """
        with self._changed:
            while self._promise.leave is None or self._stays:
                left = self._last_command_at + self._promise.hold - self._clock()
                if left <= 0:
                    break
                self._changed.wait(left)
            self.leaving = self._promise.leave is True
            self._promise.left()
            return self.leaving

    def _fail(self, error: str) -> None:
        with self._changed:
            self._promise.failed(error, self._clock())
            self._changed.notify_all()


def _parse(name: str, request: Mapping[str, Any]) -> _Fields:
    try:
        fields = codec.read(_Fields, request)
    except codec.Misfit as misfit:
        raise UsageError(f"{name}: {misfit}") from None
    if not (fields.id.isprintable() and 0 < len(fields.id) <= MAX_ID):
        raise UsageError(f"{name}: id must have 1 to {MAX_ID} printable characters")
    if max(fields.patience, fields.hold) > MAX_WAIT_S:
        raise UsageError(f"{name}: patience and hold must be at most {MAX_WAIT_S:g} seconds")
    if name == "at" and fields.step is None:
        raise UsageError(f"{name}: step is missing")
    return fields


_this_process = Participant()
_hook: list[object] = []


def this_process() -> Participant:
    return _this_process


def register(save: Save) -> None:
    """Call `save` when a checkpoint is requested. Call from the training thread; a second call replaces the first."""
    torch = _loaded_torch()
    add_hook = torch.find("optim.optimizer.register_optimizer_step_post_hook") if torch else None
    if add_hook is not None and not _hook:
        _hook.append(add_hook(lambda optimizer, args, kwargs: _this_process.optimizer_stepped(optimizer)))
    _this_process.register(save, hooked=bool(_hook))


def step_ended(step: int | None = None) -> None:
    _this_process.step_ended(step)


def commands(identify: Callable[[], Identity]) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """The commands of this process's control socket for checkpoints and defragmentations."""

    def executing(name: str, action: Action) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        return lambda request: _this_process.command(name, request, identify(), action)

    return {action.prefix + name: executing(name, action) for action in ACTIONS for name in COMMANDS}


def _in_forked_child() -> None:
    """Start afresh: the child trains only if it registers, and a thread it does not have may hold the lock."""
    global _this_process
    _this_process = Participant()


os.register_at_fork(after_in_child=_in_forked_child)
