"""The form of a hostile kubeconfig as test data: its text, what lies beside it, and how it is refused."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from papers import inline, kubeconfig

SECRET = "hunter2-do-not-show"
"""Stands wherever a kubeconfig holds a secret; no refusal may show it."""

RAN = "ran"
"""The file that a program makes beside the kubeconfig when it is run, which none may be."""

CANARY = "canary"
"""A file beside the kubeconfig that is not to be opened unless a case says so."""

TOKEN = {"token": SECRET}
Setting = Callable[[Path], object]


@dataclass(frozen=True)
class Hostile:
    """One kind of hostile kubeconfig, refused with `words`.

    `text` may have HOME for the folder that it is read in, and `prepare` puts into that folder what the case needs.
    `opened` names the files there, the kubeconfig aside, that may be opened to find out. `trusted` has it read with
    exec plugins allowed; `secret` as text out of a Secret, where nothing at all may be opened.
    """

    kind: str
    text: str
    words: str
    prepare: Setting = field(default=lambda _home: None)
    opened: tuple[str, ...] = ()
    trusted: bool = False
    secret: bool = False

    def in_folder(self, home: Path) -> str:
        """Return the text for a folder."""
        return self.text.replace("HOME", str(home))


def written(user: object = TOKEN, cluster: Mapping[str, Any] | None = None, **top: Any) -> str:
    """Write a kubeconfig around a user and a cluster."""
    return kubeconfig(user, dict(cluster or {}), **top)  # type: ignore[arg-type]


def plugin(command: str = "HOME/plugin", **more: Any) -> dict[str, Any]:
    """Make a user with an exec plugin."""
    return {"exec": {"command": command, "apiVersion": "client.authentication.k8s.io/v1", **more}}


def runnable(home: Path) -> None:
    """Put a program beside the kubeconfig that tells when it is run."""
    path = home / "plugin"
    path.write_text(f"#!/bin/sh\ntouch {home / RAN}\n")
    path.chmod(0o700)


BESIDE: dict[str, Setting] = {
    "program": runnable,
    "pipe": lambda home: os.mkfifo(home / "odd"),
    "device": lambda home: (home / "odd").symlink_to("/dev/zero"),
    "folder": lambda home: (home / "odd").mkdir(),
    "link to itself": lambda home: (home / "odd").symlink_to("odd"),
    "link to nothing": lambda home: (home / "odd").symlink_to("nowhere"),
}
"""What lies beside a kubeconfig: a program called `plugin`, or something called `odd` that is no file of text."""


def data(content: bytes) -> str:
    """Encode what a -data field holds."""
    return inline(content)
