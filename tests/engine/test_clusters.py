"""Reading credentials that may be had or not, quickly or slowly, while nobody waits."""

import asyncio
from pathlib import Path

from filekit import heard
from papers import kubeconfig
from virtualtime import in_virtual_time
from worldkit import A, B, topology

from tensile.engine.clusters import PATIENCE, RETRY, CredentialChecks
from tensile.errors import AccessError
from tensile.kube.credentials import Access, from_kubeconfig
from tensile.kube.file_watch import FileWatcher
from tensile.topology import Lower

FIRST, SECOND = topology(f"name: {A}", f"name: {B}").lowers
READING = "the new credentials are still being read"


class CredentialReader:
    """Where credentials are read: what is wrong with which, and how long it takes to find out."""

    def __init__(self) -> None:
        self.wrong: dict[str, str] = {}
        self.seconds = 0.0
        self.asked: list[str] = []
        self.given_up: list[str] = []

    async def read(self, spec: Lower) -> str:
        """Read those of a lower."""
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
async def test_what_can_be_read_is_not_objected_to() -> None:
    """And is read anew the next time: files change."""
    desk = CredentialReader()
    trials = CredentialChecks(desk.read, FileWatcher())
    assert [await trials.error(FIRST), await trials.error(FIRST)] == ["", ""]
    assert desk.asked == ["k/0", "k/0"]


@in_virtual_time
async def test_what_cannot_be_read_is_said_and_tried_again_in_time() -> None:
    """However often somebody asks in between; once it can be read that is known."""
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
async def test_a_slow_reading_holds_up_nobody_for_long() -> None:
    """Only the first question waits for it at all, and a later one is told how it ended."""
    desk = CredentialReader()
    desk.seconds = 25.0
    trials, clock = CredentialChecks(desk.read, FileWatcher()), asyncio.get_running_loop().time
    assert (await trials.error(FIRST), clock()) == (READING, PATIENCE)
    for second in range(1, 25):
        assert (await trials.error(FIRST), clock()) == (READING, second)
        await asyncio.sleep(1.0)
    assert (await trials.error(FIRST), desk.asked) == ("", ["k/0"])


@in_virtual_time
async def test_a_slow_reading_that_fails_is_told_before_there_is_another() -> None:
    """It rests for as long as a quick one does."""
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
async def test_a_reading_for_which_descriptors_are_short_is_repeated() -> None:
    """It ends nothing: it is told like any other that fails, and nobody is stuck with it."""
    shortages = ["[Errno 24] Too many open files"]

    async def read(_spec: Lower) -> None:
        """Fail once."""
        if shortages:
            raise OSError(24, "Too many open files")

    trials = CredentialChecks(read, FileWatcher())
    assert await trials.error(FIRST) == shortages.pop()
    await asyncio.sleep(RETRY)
    await trials.error(FIRST)
    await asyncio.sleep(0.1)
    assert await trials.error(FIRST) == ""


@in_virtual_time
async def test_other_credentials_are_another_reading() -> None:
    """What was read of those before does not count any more, and a reading of them that is under way is given up."""
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
async def test_what_does_not_concern_the_way_is_no_other_reading() -> None:
    """An edit beside it does not begin anew what takes long."""
    desk = CredentialReader()
    desk.seconds = 25.0
    trials = CredentialChecks(desk.read, FileWatcher())
    for qps in (1, 2, 3):
        assert await trials.error(FIRST.model_copy(update={"qps": qps})) == READING
    assert (len(desk.asked), desk.given_up) == (1, [])


@in_virtual_time
async def test_lowers_are_read_beside_each_other() -> None:
    """One that hangs says nothing of another."""
    desk = CredentialReader()
    desk.seconds = 25.0
    trials = CredentialChecks(desk.read, FileWatcher())
    assert await trials.error(FIRST) == READING
    desk.seconds = 0.0
    assert await trials.error(SECOND) == ""


async def test_files_that_cannot_be_used_are_read_again_when_they_change(tmp_path: Path) -> None:
    """Not before, and at once then: a kubeconfig that is not there yet, and after it the token that it names."""
    read: list[str] = []
    spec = FIRST.model_copy(update={"kubeconfig": "later"})
    text = kubeconfig({"tokenFile": "token"})

    async def access(spec: Lower) -> Access:
        """Read the files."""
        read.append(spec.name)
        return await from_kubeconfig(tmp_path / (spec.kubeconfig or ""))

    watcher = FileWatcher()
    trials = CredentialChecks(access, watcher)
    for name, content, words in (("later", text, "later: cannot be read"), ("token", "t", "token: cannot be read")):
        before = len(read)
        for _ in range(3):
            assert words in await trials.error(spec)
        async with heard(watcher, tmp_path / name):
            assert len(read) == max(before, 1)
            (tmp_path / name).write_text(content)
        await asyncio.wait({trial.task for trial in trials._trials.values()})
    assert await trials.error(spec) == ""
    assert len(read) == 3
    await trials.close()
    await watcher.close()


@in_virtual_time
async def test_at_the_end_nothing_is_read_any_more() -> None:
    """What is under way is given up."""
    desk = CredentialReader()
    desk.seconds = 25.0
    trials = CredentialChecks(desk.read, FileWatcher())
    await trials.error(FIRST)
    await trials.error(SECOND)
    await trials.close()
    assert desk.given_up == [A, B]
