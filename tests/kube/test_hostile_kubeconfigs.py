"""Tests that each kind of hostile kubeconfig is rejected with a reason.

No program is run, and no file is opened that is not needed.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hostile_content
import hostile_sections
import pytest
from certkit import CertificateSet, inline, kubeconfig
from hostile_form import CANARY, RAN, SECRET, HostileKubeconfig, kubeconfig_text, plugin, runnable

from tensile.kube.credentials import AccessError, from_kubeconfig, from_text

ALL = (*hostile_sections.ALL, *hostile_content.ALL)
KINDS = 148
LIMIT = 10.0
PYTHON = (sys.prefix, sys.base_prefix)
"""The directories of Python modules, which may be imported during a test."""
_STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system")
_heard: list[list[tuple[str, str]]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    """Record opened files, started programs and connections while a block of `listening` runs."""
    if _heard and (event == "open" or event in _STARTS or event == "socket.connect"):
        subject = arguments[0]
        if not isinstance(subject, int):  # a file that is open already, under its number
            _heard[-1].append((event, os.fsdecode(subject) if isinstance(subject, str | bytes | Path) else ""))


sys.addaudithook(_hear)


@contextmanager
def listening() -> Iterator[list[tuple[str, str]]]:
    """Return the list of files opened and programs started in the block, as Python's audit hook reports them."""
    audit_events: list[tuple[str, str]] = []
    _heard.append(audit_events)
    try:
        yield audit_events
    finally:
        _heard.remove(audit_events)


async def refusal(hostile: HostileKubeconfig, home: Path) -> str:
    """Read a hostile kubeconfig with a timeout, and return the message of the error."""
    async with asyncio.timeout(LIMIT):
        reading = (
            from_text(hostile.in_folder(home), "Secret a/b")
            if hostile.secret
            else from_kubeconfig(home / "f", allow_exec_plugins=hostile.trusted)
        )
        with pytest.raises(AccessError) as refused:
            await reading
    return str(refused.value)


def prepared(hostile: HostileKubeconfig, home: Path) -> None:
    """Write the kubeconfig and the files beside it."""
    (home / "f").write_text(hostile.in_folder(home), newline="")
    (home / CANARY).write_text(SECRET)
    hostile.prepare(home)


@pytest.mark.parametrize("hostile", ALL, ids=lambda one: one.kind)
async def test_a_hostile_kubeconfig_is_rejected_without_running_or_opening_anything(
    hostile: HostileKubeconfig, home: Path
) -> None:
    """The error names the place, is short and printable, and contains no secret."""
    prepared(hostile, home)
    allowed = set() if hostile.secret else {str(home / name) for name in ("f", *hostile.opened)}
    with listening() as audit_events:
        message = await refusal(hostile, home)
    assert hostile.message in message
    assert message.startswith(("Secret a/b", str(home), "/dev"))
    assert message.isprintable()
    assert len(message) < 600
    assert SECRET not in message
    assert [what for what in audit_events if what[0] != "open"] == []
    assert {path for event, path in audit_events if event == "open" and not path.startswith(PYTHON)} <= allowed
    assert not (home / RAN).exists()


async def test_the_audit_hook_records_started_programs_and_opened_files(home: Path) -> None:
    """An allowed exec plugin and allowed files are recorded, which proves that the hook works."""
    runnable(home)
    (home / "ca").write_bytes(b"")
    (home / "f").write_text(kubeconfig_text(plugin(), {"certificate-authority": "ca"}).replace("HOME", str(home)))
    with listening() as audit_events, pytest.raises(AccessError):
        await from_kubeconfig(home / "f", allow_exec_plugins=True)
    assert {("open", str(home / "f")), ("open", str(home / "ca"))} <= set(audit_events)
    assert "subprocess.Popen" in {event for event, _ in audit_events}
    assert (home / RAN).exists()


@pytest.mark.parametrize("name", ["fifo", "folder", "loop", "device", "gone"])
async def test_a_kubeconfig_that_is_no_regular_file_is_rejected_without_opening_it(home: Path, name: str) -> None:
    """A pipe is not waited for, and a device is not opened."""
    path = home / name
    {
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "loop": lambda: path.symlink_to(name),
        "device": lambda: path.symlink_to("/dev/zero"),
        "gone": lambda: None,
    }[name]()
    async with asyncio.timeout(LIMIT):
        with listening() as audit_events, pytest.raises(AccessError, match=f"{name}: (not a file|cannot be read)"):
            await from_kubeconfig(path)
    assert audit_events == []


async def test_a_kubeconfig_that_is_not_utf_8_is_rejected(home: Path) -> None:
    """UTF-16 text and binary data have an error that says so."""
    for content in (b"\xff\xfea\0:\0", os.urandom(64) + b"\xff"):
        (home / "f").write_bytes(content)
        with pytest.raises(AccessError, match="is not UTF-8"):
            await from_kubeconfig(home / "f")


async def test_a_kubeconfig_of_a_terabyte_is_rejected_because_of_its_size(home: Path) -> None:
    """Not more of it is read than the limit."""
    with (home / "f").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(AccessError, match="larger than 1048576 bytes"):
        await from_kubeconfig(home / "f")


@pytest.mark.parametrize("secret", [False, True], ids=["file", "secret"])
async def test_a_client_key_that_does_not_match_its_certificate_is_rejected(
    home: Path, certificates: CertificateSet, *, secret: bool
) -> None:
    """This applies to a kubeconfig in a file and to one in a Secret."""
    text = kubeconfig(
        {"client-certificate-data": inline(certificates.alice), "client-key-data": inline(certificates.server_key)}
    )
    (home / "f").write_text(text)
    with pytest.raises(AccessError, match="not a matching pair in PEM"):
        await (from_text(text, "Secret a/b") if secret else from_kubeconfig(home / "f"))


async def test_symlinks_to_a_kubeconfig_and_a_token_file_are_followed(home: Path) -> None:
    """Kubernetes mounts Secrets with symlinks, so they are as valid as the files."""
    (home / "..data").mkdir()
    (home / "..data" / "f").write_text(kubeconfig({"tokenFile": "token"}))
    (home / "..data" / "token").write_text("t")
    for name in ("f", "token"):
        (home / name).symlink_to(f"..data/{name}")
    assert (await from_kubeconfig(home / "f")).headers == {"Authorization": "Bearer t"}


def test_the_corpus_has_enough_distinct_kinds_of_hostile_kubeconfigs() -> None:
    """No kind is counted twice."""
    assert len({one.kind for one in ALL}) == len(ALL)
    assert len(ALL) >= KINDS
