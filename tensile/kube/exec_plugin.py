"""Exec plugins of kubeconfigs: their input, their output, and runs with limited time and size.

A plugin is a program that prints a credential. The kubeconfig chooses it, so only an absolute path is accepted, and
unknown keys in its section are errors. Unknown keys in its output are ignored, as in Kubernetes: they do not change the
credential.

The Kubernetes library has a runner too, but it reads without limit and leaves a hanging program running. Here the
program has a process group, which is killed as a whole after a failure. It inherits only a few harmless variables. Its
standard error may contain a secret and is discarded.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from tensile.errors import AccessError
from tensile.kube.kubeconfig import ExecPlugin, KubeconfigSection, Text, Token, validation_message, wrong
from tensile.text import shown

MARGIN = 60.0
"""Seconds before its expiry from which on a credential is not used any more."""

SECONDS = 30.0
MOST = 1 << 18
"""The most bytes of output: far more than a token and two certificates need."""

_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")


def _epoch_seconds(expiry: Any) -> float | None:
    """Return a time in seconds since 1970, None for what is no time."""
    try:
        return datetime.fromisoformat(str(expiry)).timestamp()
    except (ValueError, OverflowError):
        return None


class ExecCredential(KubeconfigSection, extra="ignore"):
    """A plugin's credential: a token, or a certificate with its key in PEM. `until` is seconds since 1970 or None."""

    token: Token = ""
    certificate: Text = Field(default="", alias="clientCertificateData")
    key: Text = Field(default="", alias="clientKeyData")
    until: Annotated[float | None, BeforeValidator(_epoch_seconds)] = Field(default=None, alias="expirationTimestamp")

    @model_validator(mode="after")
    def _has_credential(self) -> "ExecCredential":
        if not (self.token or (self.certificate and self.key)):
            raise wrong("has neither a token nor a certificate with its key", "run it by hand")
        return self


class _Answer(KubeconfigSection, extra="ignore"):
    """A plugin's output. Its version must be the one in the plugin's section."""

    kind: Literal["ExecCredential"]
    api_version: str
    status: ExecCredential

    @model_validator(mode="after")
    def _has_requested_version(self, info: ValidationInfo) -> "_Answer":
        if self.api_version != info.context:
            raise wrong("apiVersion is not the requested one", "run it by hand")
        return self


def question(plugin: ExecPlugin, server: str, server_name: str, authority: str, config: Any = None) -> str:
    """Return the input of the plugin, in KUBERNETES_EXEC_INFO.

    `authority` is the cluster's CA in base64, `config` what the kubeconfig has for plugins in the cluster's extensions.
    """
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        cluster_info = {
            "server": server,
            "tls-server-name": server_name,
            "certificate-authority-data": authority,
            "config": config,
        }
        spec["cluster"] = {key: value for key, value in cluster_info.items() if value}
    return orjson.dumps({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()


def read_answer(output: bytes, plugin: ExecPlugin, where: str) -> ExecCredential:
    """Parse the output of a plugin. The AccessError repeats none of it."""
    version = plugin.api_version
    try:
        return _Answer.model_validate_json(output, by_alias=True, by_name=False, context=version).status
    except ValidationError as error:
        what, _ = validation_message(_Answer, error)
        raise AccessError(
            f"{_subject(plugin, where)} did not print an ExecCredential of {version} ({what})", "run it by hand"
        ) from None


async def run_plugin(plugin: ExecPlugin, plugin_input: str, where: str, *, seconds: float = SECONDS) -> bytes:
    """Run a plugin with its input and return its output. Raises AccessError if it fails."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    variables = {**inherited, **{one.name: one.value for one in plugin.env}, "KUBERNETES_EXEC_INFO": plugin_input}
    subject = _subject(plugin, where)
    _check_program(plugin.command, subject)
    try:
        async with asyncio.timeout(seconds):
            return await _output(plugin, variables, subject)
    except TimeoutError:
        raise AccessError(f"{subject} did not exit within {seconds:g} s", "run it by hand") from None
    except (OSError, ValueError) as error:
        raise AccessError(f"{subject} could not be started ({type(error).__name__})", "run it by hand") from None


def _subject(plugin: ExecPlugin, where: str) -> str:
    """Return the subject of a message. It does not show the arguments, which may contain secrets."""
    return f"{where}: the exec plugin {shown(plugin.command)}"


def _check_program(command: str, subject: str) -> None:
    """Raise AccessError if the program does not exist."""
    if not Path(command).is_file():
        raise AccessError(f"{subject} is not a file", "install it, or correct exec.command")


async def _output(plugin: ExecPlugin, variables: Mapping[str, str], subject: str) -> bytes:
    """Start the program and return what it prints. After a failure no process of it is left.

    The pipe is our own: with a pipe of asyncio, a program counts as running until the pipe was read to its end.
    """
    readable, writable = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(readable, "rb"))
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.args,
                env=variables,
                stdin=DEVNULL,
                stdout=writable,
                stderr=DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(writable)
        try:
            output = await _read(reader, subject)
            await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
    finally:
        pipe.close()
    if process.returncode:
        raise AccessError(f"{subject} exited with code {process.returncode}", "run it by hand")
    return output


async def _read(reader: asyncio.StreamReader, subject: str) -> bytes:
    """Read to the end. Raises AccessError beyond `MOST` bytes."""
    output = b""
    while piece := await reader.read(1 << 16):
        output += piece
        if len(output) > MOST:
            raise AccessError(f"{subject} printed more than {MOST} bytes", "run it by hand")
    return output
