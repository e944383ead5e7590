"""The form of a hostile kubeconfig as test data: its text, the files beside it, and the error that refuses it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from certkit import inline, kubeconfig

SECRET = "hunter2-do-not-show"
"""The value of every secret in a kubeconfig; no error may show it."""

RAN = "ran"
"""The file that a program creates beside the kubeconfig when it is run, which must never happen."""

CANARY = "canary"
"""A file beside the kubeconfig that must not be opened unless a case allows it."""

TOKEN = {"token": SECRET}
PrepareFolder = Callable[[Path], object]


@dataclass(frozen=True)
class HostileKubeconfig:
    """One kind of hostile kubeconfig, refused with `message`.

    `text` may have HOME for the folder that it is read in, and `prepare` creates in that folder what the case needs.
    `opened` names the files there, other than the kubeconfig, that may be opened to validate it. `trusted` means that
    it is read with exec plugins allowed; `secret` that it is text from a Secret, for which no file may be opened.
    """

    kind: str
    text: str
    message: str
    prepare: PrepareFolder = field(default=lambda _home: None)
    opened: tuple[str, ...] = ()
    trusted: bool = False
    secret: bool = False

    def in_folder(self, home: Path) -> str:
        """Return the text for a folder."""
        return self.text.replace("HOME", str(home))


def kubeconfig_text(user: object = TOKEN, cluster: Mapping[str, Any] | None = None, **top: Any) -> str:
    """Return the text of a kubeconfig with a user and a cluster."""
    return kubeconfig(user, dict(cluster or {}), **top)  # type: ignore[arg-type]


def plugin(command: str = "HOME/plugin", **more: Any) -> dict[str, Any]:
    """Make a user with an exec plugin."""
    return {"exec": {"command": command, "apiVersion": "client.authentication.k8s.io/v1", **more}}


def runnable(home: Path) -> None:
    """Create a program beside the kubeconfig that creates a file when it is run."""
    path = home / "plugin"
    path.write_text(f"#!/bin/sh\ntouch {home / RAN}\n")
    path.chmod(0o700)


BESIDE: dict[str, PrepareFolder] = {
    "program": runnable,
    "pipe": lambda home: os.mkfifo(home / "odd"),
    "device": lambda home: (home / "odd").symlink_to("/dev/zero"),
    "folder": lambda home: (home / "odd").mkdir(),
    "link to itself": lambda home: (home / "odd").symlink_to("odd"),
    "link to nothing": lambda home: (home / "odd").symlink_to("nowhere"),
}
"""Files beside a kubeconfig: a program named `plugin`, or an entry named `odd` that is no text file."""


def data(content: bytes) -> str:
    """Encode the content of a -data field."""
    return inline(content)
