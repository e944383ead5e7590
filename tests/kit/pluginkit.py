"""Exec plugins for tests: programs that print a credential, and kubeconfigs that name them."""

import json
from collections.abc import Mapping
from pathlib import Path

from certkit import kubeconfig

V1 = "client.authentication.k8s.io/v1"


def script(home: Path, lines: str) -> Path:
    """Write a program."""
    path = home / "plugin"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o700)
    return path


def plugin(home: Path, status: Mapping[str, str], extra: str = "") -> Path:
    """Write an exec plugin that runs `extra` first, and answers with `status`."""
    credential = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})
    return script(home, f"{extra}\ncat <<'EOF'\n{credential}\nEOF")


def exec_config(home: Path, command: str, cluster: Mapping[str, str] | None = None, **more: object) -> Path:
    """Write a kubeconfig that uses an exec plugin."""
    path = home / "f"
    path.write_text(kubeconfig({"exec": {"command": command, "apiVersion": V1, **more}}, dict(cluster or {})))
    return path
