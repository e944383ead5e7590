"""Tests of the checks of credentials, which may fail or be slow, without blocking their callers."""

import asyncio
from pathlib import Path

from certkit import kubeconfig
from filekit import wait_for_watcher
from virtualtime import in_virtual_time
from worldkit import A, B, make_topology

from tensile.engine.clusters import PATIENCE, RETRY, CredentialChecks
from tensile.errors import AccessError
from tensile.kube.credentials import Access, from_kubeconfig
from tensile.kube.file_watch import FileWatcher
from tensile.topology import Lower

FIRST, SECOND = make_topology(f"name: {A}", f"name: {B}").lowers
READING = "the new credentials are still being read"


class CredentialReader:
    """A reader of credentials with configurable errors and a configurable duration."""

    def __init__(self) -> None:
        self.wrong: dict[str, str] = {}
        self.seconds = 0.0
        self.asked: list[str] = []
        self.given_up: list[str] = []

    async def read(self, spec: Lower) -> str:
        """Read the credentials of a lower."""
        self.asked.append(spec.kubeconfig or "")
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.given_up.append(spec.name)
            raise
        if spec.name in self.wrong:
            raise AccessError(self.wrong[spec.name])
        return "an access"


@in_virtual_time
async def test_readable_credentials_have_no_error() -> None:
    """They are read again for the next call, because files can change."""
    desk = CredentialReader()
    trials = CredentialChecks(desk.read, FileWatcher())
    assert [await trials.error(FIRST), await trials.error(FIRST)] == ["", ""]
    assert desk.asked == ["k/0", "k/0"]


@in_virtual_time
async def test_unreadable_credentials_are_an_error_until_the_next_attempt() -> None:
    """They are read again after an interval, however often the error is requested in between."""
    desk = CredentialReader()
    desk.wrong[A] = "k/0: no such file"
    trials = CredentialChecks(desk.read, FileWatcher())
    for _ in range(4):
        assert await trials.error(FIRST) == "k/0: no such file"
        await asyncio.sleep(RETRY / 5)
    assert len(desk.asked) == 1
    desk.wrong.clear()
    for _ in range(2):
        assert await trials.error(FIRST) == "k/0: no such file"
        await asyncio.sleep(RETRY / 5)
    assert await trials.error(FIRST) == ""


@in_virtual_time
async def test_an_unexpected_error_is_one_of_its_lower_and_the_reading_is_repeated() -> None:
    """A bug in a reader must not stop the checks of the other lowers."""
    read: list[str] = []

    async def fail(spec: Lower) -> None:
        """Fail as no reader should."""
        read.append(spec.name)
        raise RuntimeError("a bug")

    checks = CredentialChecks(fail, FileWatcher())
    assert [await checks.error(FIRST), await checks.error(SECOND)] == ["a bug", "a bug"]
    for _ in range(2):
        await asyncio.sleep(RETRY)
        assert await checks.error(FIRST) == "a bug"
    assert (read[:2], read.count(A) > 1) == ([A, B], True)


@in_virtual_time
async def test_a_slow_check_blocks_only_its_first_caller_for_a_limited_time() -> None:
    """A later call returns its result."""
    desk = CredentialReader()
    desk.seconds = 25.0
    trials, clock = CredentialChecks(desk.read, FileWatcher()), asyncio.get_running_loop().time
    assert (await trials.error(FIRST), clock()) == (READING, PATIENCE)
    for second in range(1, 25):
        assert (await trials.error(FIRST), clock()) == (READING, second)
        await asyncio.sleep(1.0)
    assert (await trials.error(FIRST), desk.asked) == ("", ["k/0"])


@in_virtual_time
async def test_the_error_of_a_slow_check_is_returned_before_the_next_attempt() -> None:
    """The interval until the next attempt is as long as after a fast check."""
    desk = CredentialReader()
    desk.seconds, desk.wrong[A] = 25.0, "the exec plugin failed"
    trials = CredentialChecks(desk.read, FileWatcher())
    assert await trials.error(FIRST) == READING
    await asyncio.sleep(desk.seconds)
    assert (await trials.error(FIRST), len(desk.asked)) == (desk.wrong[A], 1)
    await asyncio.sleep(RETRY)
    for _ in range(20):
        assert await trials.error(FIRST) == desk.wrong[A]
        await asyncio.sleep(1.0)
    assert len(desk.asked) == 2


@in_virtual_time
async def test_a_check_that_fails_for_lack_of_file_descriptors_is_repeated() -> None:
    """It is an error like any other, and does not end the checks."""
    shortages = ["[Errno 24] Too many open files"]

    async def read(_spec: Lower) -> None:
        """Raise OSError once."""
        if shortages:
            raise OSError(24, "Too many open files")

    trials = CredentialChecks(read, FileWatcher())
    assert await trials.error(FIRST) == shortages.pop()
    await asyncio.sleep(RETRY)
    await trials.error(FIRST)
    await asyncio.sleep(0.1)
    assert await trials.error(FIRST) == ""


@in_virtual_time
async def test_changed_credentials_are_checked_again() -> None:
    """The result for the former ones is ignored, and a check of them that is in progress is canceled."""
    desk = CredentialReader()
    desk.wrong[A] = "wrong"
    trials = CredentialChecks(desk.read, FileWatcher())
    assert await trials.error(FIRST) == "wrong"
    desk.wrong.clear()
    assert await trials.error(FIRST.model_copy(update={"context": "other"})) == ""
    desk.seconds = 25.0
    assert await trials.error(FIRST) == READING
    desk.seconds = 0.0
    assert await trials.error(FIRST.model_copy(update={"kubeconfig": "right"})) == ""
    assert (desk.asked[-1], desk.given_up) == ("right", [A])


@in_virtual_time
async def test_an_edit_that_does_not_concern_the_credentials_starts_no_new_check() -> None:
    """A slow check is not started again by such an edit."""
    desk = CredentialReader()
    desk.seconds = 25.0
    trials = CredentialChecks(desk.read, FileWatcher())
    for qps in (1, 2, 3):
        assert await trials.error(FIRST.model_copy(update={"qps": qps})) == READING
    assert (len(desk.asked), desk.given_up) == (1, [])


@in_virtual_time
async def test_the_credentials_of_each_lower_are_checked_independently() -> None:
    """A slow check of one lower does not delay that of another."""
    desk = CredentialReader()
    desk.seconds = 25.0
    trials = CredentialChecks(desk.read, FileWatcher())
    assert await trials.error(FIRST) == READING
    desk.seconds = 0.0
    assert await trials.error(SECOND) == ""


async def test_unusable_credential_files_are_read_again_as_soon_as_they_change(tmp_path: Path) -> None:
    """They are not read before; the case is a missing kubeconfig, and then the missing token file that it names."""
    read: list[str] = []
    spec = FIRST.model_copy(update={"kubeconfig": "later"})
    text = kubeconfig({"tokenFile": "token"})

    async def access(spec: Lower) -> Access:
        """Read the files."""
        read.append(spec.name)
        return await from_kubeconfig(tmp_path / (spec.kubeconfig or ""))

    watcher = FileWatcher()
    trials = CredentialChecks(access, watcher)
    for name, content, message in (("later", text, "later: cannot be read"), ("token", "t", "token: cannot be read")):
        before = len(read)
        for _ in range(3):
            assert message in await trials.error(spec)
        async with wait_for_watcher(watcher, tmp_path / name):
            assert len(read) == max(before, 1)
            (tmp_path / name).write_text(content)
        await asyncio.wait({trial.task for trial in trials._attempts.values()})
    assert await trials.error(spec) == ""
    assert len(read) == 3
    await trials.close()
    await watcher.close()


@in_virtual_time
async def test_closing_cancels_the_checks_in_progress() -> None:
    """No credentials are read afterwards."""
    desk = CredentialReader()
    desk.seconds = 25.0
    trials = CredentialChecks(desk.read, FileWatcher())
    await trials.error(FIRST)
    await trials.error(SECOND)
    await trials.close()
    assert desk.given_up == [A, B]
