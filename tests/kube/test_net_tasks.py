"""Tests of supervised tasks: restarted after an exception, finished when they return, and ended when canceled."""

import asyncio

import pytest
from virtualtime import clock, in_virtual_time

from tensile.kube.net import cancel_and_wait, insist, supervised


@in_virtual_time
async def test_a_failed_task_is_restarted_after_a_pause() -> None:
    """It ends when its job returns."""
    begun: list[float] = []

    async def job() -> None:
        """Fail twice."""
        begun.append(clock())
        if len(begun) < 3:
            raise ValueError("a defect")

    await supervised("trial", job, lambda: 2.0)
    assert [time - begun[0] for time in begun] == [0, 2, 4]


@in_virtual_time
async def test_a_failure_is_logged_with_its_task_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    """The log line has the name of the task, the exception, and the line of code."""
    failed = asyncio.Event()

    async def job() -> None:
        """Fail once."""
        if not failed.is_set():
            failed.set()
            raise ValueError("a defect")

    await supervised("trial", job)
    output = capsys.readouterr().out
    assert "trial" in output
    assert "ValueError: a defect at test_net_tasks.py:" in output


@in_virtual_time
async def test_a_repeated_failure_is_logged_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """The line has the number of failures since the last one, however fast the task fails."""

    async def job() -> None:
        """Fail."""
        raise ValueError("a defect")

    task = supervised("trial", job, cluster="a")
    await asyncio.sleep(90)
    task.cancel()
    lines = capsys.readouterr().out.splitlines()
    assert [("cluster=a" in line, "more_since=59" in line) for line in lines] == [(True, False), (True, True)]


@in_virtual_time
async def test_insist_retries_after_expected_errors_and_raises_the_excepted_ones() -> None:
    """Only errors that end without intervention are retried."""
    errors = [KeyError("a"), IndexError("b"), KeyError("c")]
    reported: list[Exception] = []

    async def job() -> None:
        """Fail, each time with another exception."""
        raise errors.pop(0)

    with pytest.raises(IndexError):
        await insist(job, LookupError, lambda: 3.0, reported.append, unless=(IndexError,))
    assert [str(error) for error in reported] == ["'a'"]
    assert clock() == 3


@in_virtual_time
async def test_a_canceled_task_is_not_restarted() -> None:
    """Cancellation is no failure."""
    begun: list[int] = []

    async def job() -> None:
        """Wait indefinitely."""
        begun.append(1)
        await asyncio.Event().wait()

    task = supervised("trial", job)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert begun == [1]


async def test_cancel_and_wait_returns_after_all_tasks_have_cleaned_up() -> None:
    """An exception in a cleanup, a finished task and None are ignored."""
    ended: list[str] = []

    async def job(name: str, error: Exception | None = None) -> None:
        """Wait, and need a moment to clean up when canceled."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)
            if error is not None:
                raise error

    done = asyncio.ensure_future(asyncio.sleep(0))
    await done
    tasks = [asyncio.create_task(job("good")), asyncio.create_task(job("bad", ValueError("a defect")))]
    await asyncio.sleep(0)
    await cancel_and_wait(*tasks, None, done)
    assert sorted(ended) == ["bad", "good"]
