"""`tensile run --configmap`: the topology in a ConfigMap of the upper cluster, and kubeconfigs in Secrets beside it."""

import asyncio
import sys
from asyncio.subprocess import Process
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from enginekit import LOWERS, CommandResult, Edit, run_command
from programkit import Program
from sitekit import LIMIT, Manifest

NAME = "topo"
STATUS = f"{NAME}-status"
KEY = "topology.yaml"
RIGHT = 30.0
"""Seconds after an edit within which the status must be correct, on a busy machine."""


class MapProgram(Program):
    """A program that follows a ConfigMap in the harness's namespace."""

    configmap = NAME

    async def start(self, *edits: Edit, await_nodes: bool = True) -> None:
        """Create the Secrets and the ConfigMap, start the program, and wait until its nodes are ready."""
        for name in LOWERS:
            await self.put_secret(name, (self.directory / f"{name}.kubeconfig").read_bytes())
        await self.put(self.text(*edits))
        await self.launch_from_configmap()
        for lower in self.file(*edits)["lowers"] if await_nodes else ():
            await self.wait_for_node(lower["node"]["name"])

    async def launch_from_configmap(self) -> None:
        """Start the program on the existing objects, and append to its log."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*self.command("run"), stdout=log, stderr=log)
        self.is_started = True

    def command(self, word: str, name: str = NAME) -> list[str]:
        """Return a command on a ConfigMap of the namespace."""
        options = ["--configmap", f"{self.namespace}/{name}", "--kubeconfig", str(self.directory / "upper.kubeconfig")]
        options += self.options if word == "run" else ()
        return [sys.executable, "-m", "tensile", word, "--log-format", "json", *options]

    async def run_alone(self, name: str) -> CommandResult:
        """Run the program on another ConfigMap until it ends."""
        return await run_command(self.command("run", name))

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[tuple[Process, Path]]:
        """Run the program on another ConfigMap, and yield it and its log file."""
        path = self.directory / f"{name}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(*self.command("run", name), stdout=log, stderr=log)
        try:
            yield process, path
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def file(self, *edits: Edit) -> Manifest:
        """Return the topology as the ConfigMap has it: without file paths."""
        found = super().file()
        del found["upper"], found["kubelet"]["tlsCertFile"], found["kubelet"]["tlsKeyFile"]
        for lower in found["lowers"]:
            del lower["kubeconfig"]
            lower["kubeconfigSecret"] = {"namespace": self.namespace, "name": lower["name"]}
        for edit in edits:
            edit(found)
        return found

    def text(self, *edits: Edit) -> str:
        """Return the topology's text."""
        return orjson.dumps(self.file(*edits), option=orjson.OPT_INDENT_2).decode()

    async def reload(self, *edits: Edit) -> None:
        """Edit the ConfigMap, which the running program follows."""
        await self.put(self.text(*edits))

    async def put(self, text: str) -> Manifest:
        """Create or patch the ConfigMap, and return it."""
        return await self.apply("configmaps", NAME, {"data": {KEY: text}})

    async def put_secret(self, name: str, kubeconfig: bytes) -> Manifest:
        """Create or patch the Secret of a lower."""
        return await self.apply("secrets", name, {"data": {"kubeconfig": b64encode(kubeconfig).decode()}})

    async def apply(self, plural: str, name: str, content: Manifest) -> Manifest:
        """Create an object of the namespace, or patch it if it exists."""
        if await self.upper.read(self.path(plural, name)):
            return await self.upper.patch(self.path(plural, name), content)
        return await self.upper.create(self.path(plural), {"metadata": {"name": name}, **content})

    async def status(self, limit: float = LIMIT, **wanted: Any) -> dict[str, Any]:
        """Wait until the status has these values, and return it; `sha256` and `error` refer to nested values."""
        found = await self.upper.until(
            self.path("configmaps", STATUS), lambda one: one and _says(read(one), wanted), limit
        )
        return read(found)

    async def wait_for_map_event(self, reason: str, message: str, name: str = NAME) -> Manifest:
        """Wait for an event of a ConfigMap whose message contains these words, and return it."""
        fields = f"involvedObject.kind=ConfigMap,involvedObject.name={name},reason={reason}"
        found = await self.upper.until_all(
            f"{self.path('events')}?fieldSelector={fields}",
            lambda events: any(message in one["message"] for one in events.values()),
        )
        return next(one for one in found.values() if message in one["message"])

    async def wait_accepted(self, text: str) -> dict[str, Any]:
        """Wait, for a short time, until the status reports that a text is accepted."""
        return await self.status(RIGHT, state="Accepted", sha256=digest(text))


async def tensile(command: list[str]) -> str:
    """Run a command that has to succeed, and return its output."""
    done = await run_command(command)
    assert (done.code, done.err) == (0, ""), done
    return done.out


def read(status: Manifest) -> dict[str, Any]:
    """Parse the data of a status."""
    data = status["data"]
    return {key: value if key in ("state", "topology") else orjson.loads(value) for key, value in data.items()}


def digest(text: str) -> str:
    """Return a text's sha256."""
    return sha256(text.encode()).hexdigest()


def _says(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    flat = {
        **found,
        "sha256": found.get("accepted", {}).get("sha256"),
        "error": found.get("rejected", {}).get("error", ""),
    }
    return all(value in flat[key] if key == "error" else flat[key] == value for key, value in wanted.items())
