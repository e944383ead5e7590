"""Valid and invalid edits of the topology: in a ConfigMap, then in a file that is truncated and replaced.

    .venv/bin/python -m bench.faults.edits --rounds 30 [--seed N]

In each round there are a valid and an invalid edit of the ConfigMap, seventeen truncations of the file at random bytes,
and two swaps of the directory that it is mounted from. After each the status refers to exactly that text within two
seconds, and the topology in force is the last valid one, identified by a label of a node; it is never a mixture.
"""

import asyncio
import sys
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson
import yaml

from bench.kit.child_processes import Child
from bench.kit.participants import wait_until_nodes_usable
from bench.kit.sites import AWAY, NODES, NotInTime, Refused
from bench.kit.topologies import by_files, by_secrets
from bench.kit.trial import NAMESPACE, Trial, run
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options
from tensile.topology import TopologyErrors, parse

MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
NAME, KEY = "topo", "topology.yaml"
CUTS_A_ROUND = 17
RIGHT_IN = 2.0
PAUSE = 0.02
BAD: tuple[Callable[[str], str], ...] = (
    lambda text: text.replace("lowers:", "lowerz:"),
    lambda text: text[: len(text) // 2] + "\n  ]",
    lambda text: text + "upper: {kubeconfig: ''}\n",
    lambda text: text.replace("basis: allocatable", "basis: everything"),
    lambda text: "# nothing but a comment\n" + text[:0],
)
Document = dict[str, Any]
Ask = Callable[[], Awaitable[Document]]


@dataclass
class Found:
    """The observations of a part of the trial: seconds until the status was right, and failures."""

    seconds: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the observations as a result."""
        ordered = sorted(self.seconds)
        return {
            "count": len(ordered),
            "median_s": round(ordered[len(ordered) // 2], 3),
            "longest_s": round(ordered[-1], 3),
        }


def digest(text: str) -> str:
    """Return a text's sha256."""
    return sha256(text.encode()).hexdigest()


def labelled(topology: Document, number: int) -> str:
    """Return a topology whose last lower's node has a label with this number; truncation removes lowers first."""
    lowers = [dict(lower) for lower in topology["lowers"]]
    lowers[-1] = {**lowers[-1], "node": {"labels": {"edit": f"e{number}"}}, "capacity": {"basis": "allocatable"}}
    first = {key: value for key, value in topology.items() if key != "lowers"}
    return yaml.safe_dump({**first, "lowers": lowers}, sort_keys=False)


async def wait_until_reported(ask: Ask, text: str, what: str, found: Found) -> Document:
    """Wait until the status contains the outcome of a text, and record how long that took."""
    begin = time.monotonic()
    while True:
        document = await ask()
        last = document.get("rejected") or document.get("accepted") or {}
        waited = time.monotonic() - begin
        if last.get("sha256") == digest(text):
            found.seconds.append(waited)
            if waited > RIGHT_IN:
                found.broken.append(f"{what}: reported after {waited:.2f} s")
            return document
        if waited > 10 * RIGHT_IN:
            raise NotInTime(f"{what}: never reported; the status is {document}")
        await asyncio.sleep(PAUSE)


async def wait_until_labelled(trial: Trial, node: str, label: str, what: str, found: Found) -> None:
    """Wait until a node has the label of the topology that should be in force."""
    begin = time.monotonic()
    seen = ""
    while time.monotonic() - begin < RIGHT_IN:
        with suppress(Refused):
            seen = (await trial.upper.call("GET", f"{NODES}/{node}"))["metadata"]["labels"].get("edit", "")
        if seen == label:
            return
        await asyncio.sleep(PAUSE)
    found.broken.append(f"{what}: {label} should be in force, it is {seen or 'none'}")


async def by_map(trial: Trial, topology: Document, rounds: int) -> Found:
    """Edit the ConfigMap, in turn validly and invalidly."""
    found, node = Found(), list(trial.lowers)[-1]

    async def ask() -> Document:
        """Read the status ConfigMap."""
        data = (await trial.upper.call("GET", f"{MAPS}/{NAME}-status"))["data"]
        return {part: orjson.loads(data[part]) for part in ("accepted", "rejected") if part in data}

    for number in range(rounds):
        good, what = labelled(topology, number), f"edit {number} of the ConfigMap"
        await trial.apply_data(MAPS, NAME, {KEY: good})
        await wait_until_reported(ask, good, what, found)
        await wait_until_labelled(trial, node, f"e{number}", what, found)
        bad = BAD[number % len(BAD)](labelled(topology, 1000 + number))
        await trial.apply_data(MAPS, NAME, {KEY: bad})
        document = await wait_until_reported(ask, bad, f"bad {what}", found)
        await wait_until_labelled(trial, node, f"e{number}", f"bad {what}", found)
        if document["accepted"]["sha256"] != digest(good) or f"/{KEY}:" not in document["rejected"]["error"]:
            found.broken.append(f"bad {what}: {document}")
    return found


class Mounted:
    """A file in a directory that is swapped as the kubelet swaps a mounted ConfigMap."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        folder.mkdir()
        self.path = folder / KEY
        self.path.symlink_to(f"..data/{KEY}")

    def swap(self, text: str) -> None:
        """Replace the text with a new directory and a rename."""
        self._count += 1
        fresh = self._folder / f"..{self._count}"
        fresh.mkdir()
        (fresh / KEY).write_text(text)
        (self._folder / "..data_tmp").symlink_to(fresh.name)
        (self._folder / "..data_tmp").replace(self._folder / "..data")

    def cut(self, text: str) -> None:
        """Overwrite the file with a truncated text."""
        self.path.write_text(text)


def meaning(text: str) -> object:
    """Return the topology of a text, None if it is invalid."""
    try:
        return parse(text)
    except TopologyErrors:
        return None


async def cut_once(ask: Ask, file: Mounted, whole: str, size: int, found: Found) -> None:
    """Truncate the file at a byte: in force is the whole file, or a truncation at a line end that is valid."""
    cut = whole[:size]
    file.cut(cut)
    document = await wait_until_reported(ask, cut, f"cut at {size}", found)
    may_be = {digest(whole)} | ({digest(cut)} if cut.endswith("\n") or meaning(cut) == meaning(whole) else set())
    if document["accepted"]["sha256"] not in may_be:
        found.broken.append(f"cut at {size}: in force is {document['accepted']}")
    if "rejected" not in document:
        file.cut(whole)
        await wait_until_reported(ask, whole, f"whole again after {size}", found)


async def by_file(trial: Trial, topology: Document, file: Mounted, args: Namespace) -> tuple[Found, Found]:
    """Truncate the file, and swap its directory, and return the observations of each."""
    cuts, swaps, chance, node = Found(), Found(), Random(args.seed), list(trial.lowers)[-1]
    url = f"http://127.0.0.1:{topology['telemetry']['port']}/status"
    async with aiohttp.ClientSession() as session:

        async def ask() -> Document:
            """Request the engine's status; return {} while it does not answer."""
            try:
                async with session.get(url) as answer:
                    document: Document = orjson.loads(await answer.read())
                    return document
            except AWAY:
                return {}

        await wait_until_reported(ask, labelled(topology, 0), "start", Found())

        for number in range(args.rounds):
            what, whole = f"swap {number}", labelled(topology, number)
            file.swap(whole)
            await wait_until_reported(ask, whole, what, swaps)
            await wait_until_labelled(trial, node, f"e{number}", what, swaps)
            for _ in range(CUTS_A_ROUND):
                await cut_once(ask, file, whole, chance.randrange(len(whole)), cuts)
            bad = BAD[number % len(BAD)](whole)
            file.swap(bad)
            await wait_until_reported(ask, bad, f"bad {what}", swaps)
            await wait_until_labelled(trial, node, f"e{number}", f"bad {what}", swaps)
    return cuts, swaps


async def start(trial: Trial, *options: str) -> None:
    """Start the engine and wait for its nodes."""
    trial.engine = Child(["tensile", "run", *options, "--log-format", "json"], trial.sandbox, trial.log)
    await wait_until_nodes_usable(trial.upper, len(trial.lowers))


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Edit the ConfigMap with one engine, then the file with another."""
    topology = yaml.safe_load((sandbox.directory / "topology.yaml").read_text())
    files = {name: sandbox.directory / f"{name}.kubeconfig" for name in sandbox.clusters}
    async with Trial(sandbox) as trial:
        await trial.keep_kubeconfigs(files)
        of_map = by_secrets(topology, trial.lowers, NAMESPACE)
        await trial.apply_data(MAPS, NAME, {KEY: labelled(of_map, 0)})
        await start(trial, "--configmap", f"{NAMESPACE}/{NAME}", "--kubeconfig", str(files[UPPER]))
        edits = await by_map(trial, of_map, args.rounds)
        assert trial.engine is not None
        trial.engine.stop()
        of_file = by_files(topology, files)
        file = Mounted(sandbox.directory / "mounted")
        file.swap(labelled(of_file, 0))
        await start(trial, "-f", str(file.path))
        cuts, swaps = await by_file(trial, of_file, file, args)
    parts = {"configmap": edits, "cuts": cuts, "swaps": swaps}
    for name, part in parts.items():
        print(name, part.figures(), flush=True)
    figures = {name: part.figures() for name, part in parts.items()}
    return {**figures, "broken": [failure for part in parts.values() for failure in part.broken]}


if __name__ == "__main__":
    sys.exit(run("edits", scenario, Options(nodes=1), pods=0, rounds=30, doc=__doc__ or ""))
