"""`tensile approve` and `tensile rollback`: what a person decides about edits of the topology that an engine follows.

Both read the ConfigMaps in which the engine reports on the topology. They are beside the topology's ConfigMap, or, for
a file, in kube-system of its upper cluster. An approval is an annotation on the status. A rollback changes the source
only, the file or the ConfigMap: the engine then follows it as any other edit, with the same checks.

Nothing is open while a person reads: the connection for the write is another one, and the write is refused if the
source has changed meanwhile.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import orjson

from tensile.cli.apply import NO_CHANGE, Ask
from tensile.cli.options import STANDARD_INPUT, TopologyOptions, directory_of, read
from tensile.engine.approval import DIGITS, check_digits
from tensile.engine.history import AcceptedText, TopologyRecords, file_place, history_ref, read_records
from tensile.engine.lower import ClusterAccess
from tensile.engine.status.configmap import part_in, status_ref
from tensile.engine.status.report import APPROVAL
from tensile.engine.topology_reader import ConfigMapKey, document
from tensile.errors import Conflict, NotFound, TensileError
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Patch
from tensile.kube.files import replace_file
from tensile.names import APPROVED
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref, as_read
from tensile.text import aligned, joined
from tensile.topology import Topology, TopologyErrors, Upper, decode, parse, salvaged_upper
from tensile.topology.diff import edit

_TIMEOUT = 5.0
_ATTEMPTS = 5
_MAX_CHANGES = 20
"""Maximum of changes that are printed."""
_HEAD = ("SHA256", "ACCEPTED", "STATE", "CHANGE")


class TopologyLocation(NamedTuple):
    """Where a topology is, and how to reach the upper cluster, which has its status and history.

    `name` is for people, `options` are those that name it on a command line. `path` is None for a ConfigMap, of which
    `place` is the name and the key; `data` is the content of a file.
    """

    name: str
    options: str
    place: ConfigMapKey
    access: ClusterAccess
    upper: Upper
    path: Path | None = None
    data: bytes = b""

    def parse(self, data: bytes) -> Topology:
        """Return the topology in a text of it. Raises TensileError."""
        return parse(decode(data, name=self.name), name=self.name, configmap_mode=self.path is None)


class _Present(NamedTuple):
    """The source as it was read: its text, and the ConfigMap that holds it ({} for a file)."""

    data: bytes
    manifest: Manifest


class RollbackPlan(NamedTuple):
    """A rollback as it is shown: the text to put back, lines for people, and the source that it replaces."""

    target: AcceptedText
    lines: tuple[str, ...]
    present: _Present

    @property
    def is_needed(self) -> bool:
        """Whether the source has another text."""
        return self.present.data != self.target.content.encode()


def locate(source: TopologyOptions) -> TopologyLocation:
    """Return where the topology is that a command line names: in a ConfigMap, or in a file.

    Raises TensileError for a file that does not say its name.
    """
    found = source.in_configmap()
    if found is not None:
        place, access = found
        return TopologyLocation(f"configmap/{place}", source.of_configmap(), place, access, Upper())
    name, data = read(source.file, of_engine=True)
    topology, upper = _name_and_upper(data, name)
    path = None if name == STANDARD_INPUT else Path(name).absolute()
    access = ClusterAccess(directory_of(name), source.allow_exec_plugins)
    if path is None:
        raise TensileError("standard input is no place for a topology: name a file with -f, or use --configmap")
    return TopologyLocation(name, f"-f {quote(name)}", file_place(topology), access, upper, path, data)


def _name_and_upper(data: bytes, name: str) -> tuple[str, Upper]:
    """Return name and upper cluster of a topology file, also of one with errors: a rollback corrects it."""
    text = decode(data, name=name)
    try:
        topology = parse(text, name=name)
    except TopologyErrors:
        found, upper = salvaged_upper(text)
        if not found:
            raise
        return found, upper
    return topology.name, topology.upper


def approve(location: TopologyLocation, digits: str) -> str:
    """Approve the edit that waits, and return the message for the user. Raises TensileError if it is another one."""
    return asyncio.run(_approve(location, check_digits(digits)))


def listed(location: TopologyLocation) -> str:
    """Return the accepted topologies as a table, the latest first. Raises TensileError if there are none."""
    return table(asyncio.run(_records(location)), location.parse)


def planned(location: TopologyLocation, digits: str | None) -> RollbackPlan:
    """Return what a rollback would put back: the text with this SHA-256, None for the one before the last edit.

    Raises TensileError if there is no such text, or it is not valid for this version.
    """
    wanted = None if digits is None else check_digits(digits)
    records, present = asyncio.run(_records_and_source(location))
    target = chosen(records, wanted, location, present.data)
    return RollbackPlan(target, tuple(_description(target, records, present, location)), present)


def roll_back(location: TopologyLocation, plan: RollbackPlan, ask: Ask | None) -> str:
    """Put the text back after a question (None: no question). Return the message for the user; raises TensileError."""
    if not plan.is_needed:
        return f"{location.name} has this text already: nothing was changed"
    if ask is not None and not ask():
        raise TensileError(NO_CHANGE)
    data = plan.target.content.encode()
    if location.path is not None:
        put_back(location.path, plan.present.data, data)
    else:
        asyncio.run(_replace_configmap(location, plan.present.manifest, data))
    return (
        f"{location.name}: rolled back to {plan.target.sha256[:DIGITS]}; the engine follows it as any edit: "
        f"see `tensile status {location.options}`"
    )


def chosen(records: TopologyRecords, wanted: str | None, location: TopologyLocation, present: bytes) -> AcceptedText:
    """Return the text to put back in place of the `present` one. Raises TensileError if there is none.

    By default that undoes the last edit: one that was refused, waits for an approval or was not read yet, else the one
    in force.
    """
    active, kept = records.active, [one for one in records.history if one.content]
    if wanted is None and any(one.sha256 == active and one.content.encode() != present for one in kept):
        wanted = active
    if wanted is None:
        found = [one for one in kept if one.sha256 != active]
        advice = "there is no other one in the history"
    else:
        found = [one for one in kept if one.sha256.startswith(wanted)]
        advice = f"{wanted} is not in the history, or was too large to be kept"
    if not found:
        raise TensileError(f"{location.name}: {advice}: see `tensile rollback --list {location.options}`")
    return found[-1]


def table(records: TopologyRecords, parse: Callable[[bytes], Topology]) -> str:
    """Return the accepted topologies as a table, the latest first, each with its changes from the one before."""
    active, rows, before = records.active, [], None
    for number, entry in enumerate(records.history):
        topology = _parsed(entry, parse)
        is_active = entry.sha256 == active and active not in {one.sha256 for one in records.history[number + 1 :]}
        state = "in force" if is_active else "-" if topology is not None else "not usable"
        rows.append((entry.sha256[:DIGITS], entry.time, state, _change(before, topology)))
        before = topology
    return joined(aligned([_HEAD, *reversed(rows)]))


def _change(before: Topology | None, after: Topology | None) -> str:
    """Return in a few words what a topology changed."""
    if before is None or after is None:
        return "-"
    found = edit(before, after)
    changes = [*found.changes, *found.refused]
    more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"{changes[0]}{more}" if changes else "text only"


def _parsed(entry: AcceptedText, parse: Callable[[bytes], Topology]) -> Topology | None:
    """Return the topology of an entry, None if it was too large to be kept or is not valid for this version."""
    with suppress(TensileError):
        return parse(entry.content.encode()) if entry.content else None
    return None


def _description(
    target: AcceptedText, records: TopologyRecords, present: _Present, location: TopologyLocation
) -> Iterator[str]:
    """Yield a rollback for people. Raises TensileError if its text is not valid for this version."""
    after = location.parse(target.content.encode())
    yield f"Roll back {location.name} to {target.sha256[:DIGITS]}, accepted at {target.time}:"
    active = next((one for one in reversed(records.history) if one.sha256 == records.active), None)
    before = None if active is None else _parsed(active, location.parse)
    if before is None:
        with suppress(TensileError):
            before = location.parse(present.data)
    if before is None:
        yield "  the topology in force is not known, so its differences are not either"
        return
    found = edit(before, after)
    is_active = target.sha256 == records.active
    no_change = "the engine goes on with this text, which is in force" if is_active else "no change in meaning"
    changes = [*found.changes, *found.refused] or [no_change]
    yield from (f"  {one}" for one in changes[:_MAX_CHANGES])
    if len(changes) > _MAX_CHANGES:
        yield f"  and {len(changes) - _MAX_CHANGES} more changes"
    limit = before.guard.approve_over
    if limit is not None:
        yield f"If this affects more running pods than guard.approveOver ({limit}), it waits for `tensile approve`."
    waiting = _waiting(records).get("sha256")
    if waiting and waiting != target.sha256:
        yield f"This gives up the edit that waits for an approval, {waiting[:DIGITS]}."


def put_back(path: Path, before: bytes, after: bytes) -> None:
    """Replace the content of a file in one step; its mode and, where allowed, its owner stay. A symlink is followed.

    Raises TensileError if it has another content than `before`, or cannot be written.
    """
    try:
        if path.read_bytes() != before:
            raise TensileError(f"{path}: was changed meanwhile, so nothing was written: roll back again")
        replace_file(path, after, like=path.stat())
    except OSError as error:
        raise TensileError(
            f"{path}: cannot be written: {error.strerror}: correct that, or write the text of `kubectl get configmap` "
            "from the history yourself"
        ) from None


@asynccontextmanager
async def _connected(location: TopologyLocation) -> AsyncIterator[HttpCluster]:
    """Connect to the upper cluster. Raises TensileError if it does not answer in time.

    An exec plugin that provides the credential has a time limit of its own.
    """
    cluster = HttpCluster(UPPER, await location.access.upper_access(location.upper))
    try:
        async with asyncio.timeout(_TIMEOUT):
            yield cluster
    except TimeoutError:
        raise TensileError(f"upper: no response within {_TIMEOUT:g} s: check that its apiserver runs") from None
    finally:
        await cluster.close()


async def _records(location: TopologyLocation) -> TopologyRecords:
    """Read status and history. Raises TensileError if there is no history."""
    async with _connected(location) as cluster:
        return await _history(cluster, location)


async def _history(cluster: HttpCluster, location: TopologyLocation) -> TopologyRecords:
    found = await read_records(cluster, await cluster.identify(), location.place)
    if not found.history:
        ref = history_ref(location.place)
        raise TensileError(
            f"{location.name}: no accepted topology is kept: ConfigMap {ref.namespace}/{ref.name} of the upper cluster "
            "does not exist, or is not an engine's: check that an engine runs, and its log"
        )
    return found


async def _records_and_source(location: TopologyLocation) -> tuple[TopologyRecords, _Present]:
    async with _connected(location) as cluster:
        records = await _history(cluster, location)
        if location.path is not None:
            return records, _Present(location.data, {})
        ref = Ref(UPPER, CONFIG_MAP, location.place.namespace, location.place.name)
        try:
            manifest: Manifest = orjson.loads(await cluster.read(ref))
        except NotFound:
            raise TensileError(document(None, location.place).problem) from None
        return records, _Present(document(manifest, location.place).data, manifest)


async def _replace_configmap(location: TopologyLocation, present: Manifest, data: bytes) -> None:
    """Put a text into the ConfigMap, unless that has changed since it was read."""
    key, text = location.place.key, data.decode()
    is_binary = key in (present.get("binaryData") or {})
    content = {"binaryData": {key: b64encode(data).decode()}} if is_binary else {"data": {key: text}}
    ref = Ref(UPPER, CONFIG_MAP, location.place.namespace, location.place.name)
    async with _connected(location) as cluster:
        try:
            await cluster.patch(ref, Patch("merge-patch", {"metadata": as_read(present), **content}))
        except Conflict:
            raise TensileError(
                f"{location.name}: was changed meanwhile, so nothing was written: roll back again"
            ) from None


async def _approve(location: TopologyLocation, digits: str) -> str:
    """Write the approval into the status, which the engine may be writing at the same time."""
    ref = status_ref(location.place)
    async with _connected(location) as cluster:
        upper = await cluster.identify()
        for _ in range(_ATTEMPTS):
            records = await read_records(cluster, upper, location.place)
            digest = pending_digest(records, digits, location)
            assert records.status is not None, "an edit waits"
            meta = {**as_read(records.status), "annotations": {APPROVED: digest}}
            with suppress(Conflict):
                await cluster.patch(ref, Patch("merge-patch", {"metadata": meta}))
                return f"approved {digest}: the engine makes it active: see `tensile status {location.options}`"
    raise TensileError(f"{ref.namespace}/{ref.name}: changes all the time: approve again")


def _waiting(records: TopologyRecords) -> Mapping[str, Any]:
    """Return what the status says of the edit that waits for an approval, {} if none does."""
    return part_in(records.status, records.owner, APPROVAL)


def pending_digest(records: TopologyRecords, digits: str, location: TopologyLocation) -> str:
    """Return the SHA-256 of the edit that waits. Raises TensileError, with what waits, if the digits are another's."""
    waiting = _waiting(records)
    if not waiting:
        active = records.active
        in_force = f"; in force: {active[:DIGITS]}" if active else ""
        raise TensileError(f"{location.name}: no edit waits for an approval{in_force}")
    digest = str(waiting["sha256"])
    if not digest.startswith(digits):
        lines = [f"  {one}" for one in waiting.get("changes") or ()][:_MAX_CHANGES]
        first = (
            f"{location.name}: {digits} does not wait for an approval. This edit waits, since {waiting.get('time')}:"
        )
        raise TensileError("\n".join([first, f"  {digest}", *lines]))
    return digest
