"""An exec plugin of a kubeconfig: what starts it, what it is asked, and what its answer is worth.

A plugin is a program that prints a credential. Which one is a kubeconfig's word, so it is taken by absolute path alone,
and everything in its section that is not understood is refused. Nothing is run here.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from tensile.errors import AccessError
from tensile.kube.wording import key_shown

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
MARGIN = 60.0
"""Seconds before its end in which a credential is not used any more."""
LONGEST_TOKEN = 1 << 15

_KEYS = frozenset(("command", "args", "env", "apiVersion", "installHint", "provideClusterInfo", "interactiveMode"))
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(rf"[\x21-\x7e]{{0,{LONGEST_TOKEN}}}")


class Plugin(NamedTuple):
    """A program by absolute path, with its arguments and variables; `version` is the form of its answer.

    `tells_cluster`: it wants to be told which cluster the credential is for.
    """

    command: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    version: str
    tells_cluster: bool


class Credential(NamedTuple):
    """What a plugin gave: a token, or a certificate and its key in PEM; `until` is seconds since 1970, if told."""

    token: str
    certificate: bytes
    key: bytes
    until: float | None


def read_plugin(section: Any, where: str) -> Plugin:
    """Read the exec section of a user; `where` says in the AccessError where it stands."""
    if not isinstance(section, Mapping):
        raise AccessError(f"{where}: exec must be a mapping with command and apiVersion")
    for key in section.keys() - _KEYS:
        raise AccessError(f"{where}: exec.{key_shown(key, _KEYS)} is not known", "remove it")
    if section.get("interactiveMode") == "Always":
        raise AccessError(
            f"{where}: exec.interactiveMode Always is refused: nobody is there to be asked", "take it out"
        )
    if section.get("apiVersion") not in VERSIONS:
        raise AccessError(f"{where}: exec.apiVersion must be one of {', '.join(VERSIONS)}")
    return Plugin(
        _command(section.get("command"), where),
        _arguments(section.get("args"), where),
        _variables(section.get("env"), where),
        section["apiVersion"],
        section.get("provideClusterInfo") is True,
    )


def question(plugin: Plugin, server: str, server_name: str, authority: str) -> str:
    """Give what the plugin is told in KUBERNETES_EXEC_INFO; `authority` is the cluster's CA in base64."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.tells_cluster:
        told = {"server": server, "tls-server-name": server_name, "certificate-authority-data": authority}
        spec["cluster"] = {key: value for key, value in told.items() if value}
    return orjson.dumps({"apiVersion": plugin.version, "kind": "ExecCredential", "spec": spec}).decode()


def read_answer(output: bytes, version: str, where: str) -> Credential:
    """Read what a plugin printed; nothing of it is repeated in the AccessError."""
    try:
        answer = orjson.loads(output)
    except orjson.JSONDecodeError:
        raise AccessError(f"{where}: the exec plugin did not print JSON", "run it by hand") from None
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict) or (answer.get("kind"), answer.get("apiVersion")) != ("ExecCredential", version):
        raise AccessError(f"{where}: the exec plugin did not print an ExecCredential of {version}", "run it by hand")
    found = Credential(
        _text(status, "token").strip(),
        _text(status, "clientCertificateData").encode(),
        _text(status, "clientKeyData").encode(),
        _moment(status.get("expirationTimestamp")),
    )
    if not is_token(found.token) or not (found.token or (found.certificate and found.key)):
        raise AccessError(
            f"{where}: the exec plugin gave no credential: neither a token nor a certificate with its key",
            "run it by hand",
        )
    return found


def is_token(token: str) -> bool:
    """Say whether a text may stand in a request's header as it is: what else may follow a line break there."""
    return _TOKEN.fullmatch(token) is not None


def _command(command: Any, where: str) -> str:
    """Give the path of the program, which says by itself what is run."""
    parts = command.split("/") if isinstance(command, str) else []
    if parts[:1] != [""] or any(part in (".", "..") for part in parts) or not command.isprintable():
        raise AccessError(f"{where}: exec.command is refused", "give its absolute path")
    return str(command)


def _arguments(given: Any, where: str) -> tuple[str, ...]:
    """Give the program's arguments."""
    found = given or ()
    if not isinstance(found, list | tuple) or not all(isinstance(one, str) and "\0" not in one for one in found):
        raise AccessError(f"{where}: exec.args must be a list of texts", "put them in quotes")
    return tuple(found)


def _variables(given: Any, where: str) -> dict[str, str]:
    """Give the program's own variables."""
    found = given or ()
    if not isinstance(found, list | tuple) or not all(map(_is_variable, found)):
        raise AccessError(f"{where}: exec.env must be a list of mappings with a name and a value, both text")
    return {one["name"]: one["value"] for one in found}


def _is_variable(one: Any) -> bool:
    """Tell what can be a variable of a program."""
    if not isinstance(one, Mapping) or one.keys() != {"name", "value"}:
        return False
    name, value = one["name"], one["value"]
    return isinstance(name, str) and bool(_VARIABLE.fullmatch(name)) and isinstance(value, str) and "\0" not in value


def _text(status: Mapping[str, Any], key: str) -> str:
    """Give the text under a key, "" for anything else."""
    value = status.get(key)
    return value if isinstance(value, str) else ""


def _moment(expiry: Any) -> float | None:
    """Give a time in seconds since 1970, None for what is none."""
    try:
        return datetime.fromisoformat(str(expiry)).timestamp()
    except (ValueError, OverflowError):
        return None
