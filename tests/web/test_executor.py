"""The thread for blocking work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gpufrag.web.executor import SerialExecutor


def test_calls_run_one_at_a_time_and_in_order() -> None:
    worker, seen = SerialExecutor("test"), []

    def call(number: int) -> int:
        seen.append(("begin", number))
        seen.append(("end", number))
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*(worker.run(lambda n=n: call(n)) for n in range(20)))

    assert asyncio.run(main()) == list(range(20))
    assert seen == [(what, number) for number in range(20) for what in ("begin", "end")]


def test_error_is_raised_in_the_caller() -> None:
    async def main() -> None:
        worker = SerialExecutor("test")
        with pytest.raises(ZeroDivisionError):
            await worker.run(lambda: 1 // 0)
        assert await worker.run(lambda: "still there") == "still there"

    asyncio.run(main())


def test_cancelled_call_does_not_run() -> None:
    release, made = threading.Event(), []

    async def main() -> None:
        worker = SerialExecutor("test")
        first = asyncio.ensure_future(worker.run(release.wait))
        second = asyncio.ensure_future(worker.run(lambda: made.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        release.set()
        await first
        await worker.run(lambda: None)

    asyncio.run(main())
    assert made == []


def test_hanging_call_does_not_delay_the_end() -> None:
    release = threading.Event()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(SerialExecutor("test").run(release.wait), 0.05)

    asyncio.run(main())  # would not return if it waited for the thread
    release.set()  # and an answer to a loop that has closed is no error
