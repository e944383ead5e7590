"""Every kind of hostile kubeconfig is refused with a reason; nothing is run, and nothing opened that is not needed."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hostile_content
import hostile_sections
import pytest
from hostile_form import CANARY, RAN, SECRET, Hostile, plugin, runnable, written
from papers import Papers, inline, kubeconfig

from tensile.kube.credentials import AccessError, from_kubeconfig, from_text

ALL = (*hostile_sections.ALL, *hostile_content.ALL)
KINDS = 148
LIMIT = 10.0
PYTHON = (sys.prefix, sys.base_prefix)
"""Where modules are, which may be imported meanwhile."""
_STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system")
_heard: list[list[tuple[str, str]]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    """Note what is opened and started, while somebody listens."""
    if _heard and (event == "open" or event in _STARTS or event == "socket.connect"):
        subject = arguments[0]
        if not isinstance(subject, int):  # a file that is open already, under its number
            _heard[-1].append((event, os.fsdecode(subject) if isinstance(subject, str | bytes | Path) else ""))


sys.addaudithook(_hear)


@contextmanager
def listening() -> Iterator[list[tuple[str, str]]]:
    """Return what Python itself reports of files opened and programs started in the block."""
    heard: list[tuple[str, str]] = []
    _heard.append(heard)
    try:
        yield heard
    finally:
        _heard.remove(heard)


async def refusal(hostile: Hostile, home: Path) -> str:
    """Read a hostile kubeconfig in bounded time, and give the words of its refusal."""
    async with asyncio.timeout(LIMIT):
        reading = (
            from_text(hostile.in_folder(home), "Secret a/b")
            if hostile.secret
            else from_kubeconfig(home / "f", allow_exec_plugins=hostile.trusted)
        )
        with pytest.raises(AccessError) as refused:
            await reading
    return str(refused.value)


def prepared(hostile: Hostile, home: Path) -> None:
    """Write the kubeconfig and what lies beside it."""
    (home / "f").write_text(hostile.in_folder(home), newline="")
    (home / CANARY).write_text(SECRET)
    hostile.prepare(home)


@pytest.mark.parametrize("hostile", ALL, ids=lambda one: one.kind)
async def test_a_hostile_kubeconfig_is_refused_and_nothing_is_run_or_opened(hostile: Hostile, home: Path) -> None:
    """The reason names where it stands and is short and printable; no secret is in it, and nothing came of it."""
    prepared(hostile, home)
    allowed = set() if hostile.secret else {str(home / name) for name in ("f", *hostile.opened)}
    with listening() as heard:
        words = await refusal(hostile, home)
    assert hostile.words in words
    assert words.startswith(("Secret a/b", str(home), "/dev"))
    assert words.isprintable()
    assert len(words) < 600
    assert SECRET not in words
    assert [what for what in heard if what[0] != "open"] == []
    assert {path for event, path in heard if event == "open" and not path.startswith(PYTHON)} <= allowed
    assert not (home / RAN).exists()


async def test_what_is_run_and_opened_is_heard(home: Path) -> None:
    """A plugin that may run, and the files that may be read, show up where the hostile ones must not."""
    runnable(home)
    (home / "ca").write_bytes(b"")
    (home / "f").write_text(written(plugin(), {"certificate-authority": "ca"}).replace("HOME", str(home)))
    with listening() as heard, pytest.raises(AccessError):
        await from_kubeconfig(home / "f", allow_exec_plugins=True)
    assert {("open", str(home / "f")), ("open", str(home / "ca"))} <= set(heard)
    assert "subprocess.Popen" in {event for event, _ in heard}
    assert (home / RAN).exists()


@pytest.mark.parametrize("name", ["fifo", "folder", "loop", "device", "gone"])
async def test_a_kubeconfig_that_is_no_file_is_refused_at_once(home: Path, name: str) -> None:
    """A pipe is not waited for, and a device is not even opened."""
    path = home / name
    {
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(name),
        "device": lambda: path.symlink_to("/dev/zero"),
        "gone": lambda: None,
    }[name]()
    async with asyncio.timeout(LIMIT):
        with listening() as heard, pytest.raises(AccessError, match=f"{name}: (not a file|cannot be read)"):
            await from_kubeconfig(path)
    assert heard == []


async def test_a_file_that_is_no_text_is_refused(home: Path) -> None:
    """UTF-16 and binaries are told as such, by where they stop being text."""
    for content in (b"\xff\xfea\0:\0", os.urandom(64) + b"\xff"):
        (home / "f").write_bytes(content)
        with pytest.raises(AccessError, match="is not UTF-8"):
            await from_kubeconfig(home / "f")


async def test_a_huge_kubeconfig_is_read_no_further_than_need_be(home: Path) -> None:
    """A sparse file of a terabyte costs nothing."""
    with (home / "f").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(AccessError, match="larger than 1048576 bytes"):
        await from_kubeconfig(home / "f")


@pytest.mark.parametrize("secret", [False, True], ids=["file", "secret"])
async def test_a_key_of_another_certificate_is_refused(home: Path, papers: Papers, *, secret: bool) -> None:
    """A pair has to be one, wherever the kubeconfig is from."""
    text = kubeconfig({"client-certificate-data": inline(papers.alice), "client-key-data": inline(papers.server_key)})
    (home / "f").write_text(text)
    with pytest.raises(AccessError, match="not a matching pair in PEM"):
        await (from_text(text, "Secret a/b") if secret else from_kubeconfig(home / "f"))


async def test_links_to_files_are_followed(home: Path) -> None:
    """Kubernetes mounts Secrets behind links, so a link to a kubeconfig and a token is as good as the file."""
    (home / "..data").mkdir()
    (home / "..data" / "f").write_text(kubeconfig({"tokenFile": "token"}))
    (home / "..data" / "token").write_text("t")
    for name in ("f", "token"):
        (home / name).symlink_to(f"..data/{name}")
    assert (await from_kubeconfig(home / "f")).headers == {"Authorization": "Bearer t"}


def test_the_corpus_is_large_and_its_kinds_are_distinct() -> None:
    """No kind of hostile kubeconfig is counted twice."""
    assert len({one.kind for one in ALL}) == len(ALL)
    assert len(ALL) >= KINDS
