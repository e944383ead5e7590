"""Tasks that are kept running: begun again after a defect, done when they are done, gone when they are cancelled."""

import asyncio

import pytest
from virtualtime import clock, in_virtual_time

from tensile.kube.net import cancel_and_wait, insist, supervised


@in_virtual_time
async def test_a_task_that_fails_is_begun_again() -> None:
    """Every failure costs a pause; what the task returns with in the end is its end."""
    begun: list[float] = []

    async def job() -> None:
        """Fail twice."""
        begun.append(clock())
        if len(begun) < 3:
            raise ValueError("a defect")

    await supervised("trial", job, lambda: 2.0)
    assert [time - begun[0] for time in begun] == [0, 2, 4]


@in_virtual_time
async def test_a_failure_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads the log learns which task it was, and what went wrong where."""
    failed = asyncio.Event()

    async def job() -> None:
        """Fail once."""
        if not failed.is_set():
            failed.set()
            raise ValueError("a defect")

    await supervised("trial", job)
    told = capsys.readouterr().out
    assert "trial" in told
    assert "ValueError: a defect at test_net_tasks.py:" in told


@in_virtual_time
async def test_a_defect_that_stays_does_not_fill_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """It is told once a minute, with the number of those in between, however fast the task fails."""

    async def job() -> None:
        """Fail."""
        raise ValueError("a defect")

    task = supervised("trial", job, cluster="a")
    await asyncio.sleep(90)
    task.cancel()
    lines = capsys.readouterr().out.splitlines()
    assert [("cluster=a" in line, "more_since=59" in line) for line in lines] == [(True, False), (True, True)]


@in_virtual_time
async def test_what_is_insisted_on_ends_with_another_error() -> None:
    """Only what passes by itself is waited for."""
    met = [KeyError("a"), IndexError("b"), KeyError("c")]
    told: list[Exception] = []

    async def job() -> None:
        """Fail, each time in another way."""
        raise met.pop(0)

    with pytest.raises(IndexError):
        await insist(job, LookupError, lambda: 3.0, told.append, unless=(IndexError,))
    assert [str(error) for error in told] == ["'a'"]
    assert clock() == 3


@in_virtual_time
async def test_a_task_can_be_cancelled() -> None:
    """Cancelling is no failure: it is not begun again."""
    begun: list[int] = []

    async def job() -> None:
        """Never end."""
        begun.append(1)
        await asyncio.Event().wait()

    task = supervised("trial", job)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert begun == [1]


async def test_cancelled_tasks_have_ended_whatever_they_raise() -> None:
    """Each has cleaned up; an error in that, a task that is done and no task at all are no matter."""
    ended: list[str] = []

    async def job(name: str, error: Exception | None = None) -> None:
        """Take a moment to clean up."""
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
