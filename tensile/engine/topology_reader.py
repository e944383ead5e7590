"""Reads the topology from a file, or from a ConfigMap of the upper cluster: yields each state of it, valid or rejected.

Editors rename, tools delete and write again, mounted ConfigMaps swap a symlink, and some writers are slow. So only the
content of a file counts. A file event merely triggers a read, and content is accepted once a second read returns the
same.

The beginning of a file is often a valid file, with fewer lowers, or with 50 instead of 500. A file that is a prefix of
the active one is watched for longer before it is accepted, and rejected if it ends in the middle of a line.

A ConfigMap is read from the cache of that one object. The API returns an object whole or not at all, so no settling is
needed as for a file. A ConfigMap that is deleted, or that lost its key, is a rejected state like any other.

A rejected state is yielded too, because its author must be informed. It does not replace the last good state, which
stays active, and with which the next one is compared.
"""

import asyncio
import base64
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import structlog

from tensile.errors import TensileError
from tensile.kube.file_watch import FileWatcher, watched
from tensile.kube.store import Cache
from tensile.objects import Manifest, metadata
from tensile.topology import Topology, TopologyErrors, TopologyProblem, decode, parse
from tensile.yaml_document import MAX_BYTES, Position

SETTLE = 0.1
"""Seconds for which a file must stay unchanged before it is considered complete."""
SHRUNK = 1.0
"""The same for a file that is a prefix of the active one: it may still be written."""
_LARGE_TEXT = 64 * 1024
_log = structlog.get_logger("tensile.engine.topology_reader")
Sleep = Callable[[float], Awaitable[None]]
CONFIGMAP_KEY = "topology.yaml"
"""The default key of the topology."""

_MAX_KEYS = 10


class TopologyText(NamedTuple):
    """Identifies a text: its size in bytes and its sha256 in hex ("" if there is no text).

    `version` and `uid` are those of the ConfigMap that holds it, "" for a file.
    """

    size: int = 0
    sha256: str = ""
    version: str = ""
    uid: str = ""


class TopologyUpdate(NamedTuple):
    """The result of a text: its topology, or the error for which it is rejected.

    `changed` is whether the topology differs in meaning from the last good one. `data` is the text itself, b"" for none
    and for a rejected one.
    """

    text: TopologyText
    topology: Topology | None = None
    error: TensileError | None = None
    changed: bool = False
    data: bytes = b""


class _FileContent(NamedTuple):
    """The content found at the path, or why there is none."""

    data: bytes
    problem: str

    def text(self) -> TopologyText:
        """Return what identifies this content."""
        return TopologyText(len(self.data), "" if self.problem else sha256(self.data).hexdigest())


class TopologyValidator:
    """Validates each state and compares it with the last good one, `last_valid`; `name` is its source, for the log."""

    def __init__(self, last_valid: Topology, name: str) -> None:
        self.last_valid = last_valid
        self._name = name
        self._was_invalid = False

    async def validate(self, text: TopologyText, parse: Callable[[], Topology]) -> TopologyUpdate:
        """Return the result of a state; `parse` raises TensileError for a bad one."""
        try:
            topology = await parsed(text, parse)
        except TensileError as error:
            self._was_invalid = True
            return TopologyUpdate(text, error=error)
        if self._was_invalid:
            _log.info("topology is valid again", file=self._name)
            self._was_invalid = False
        changed = topology != self.last_valid
        self.last_valid = topology
        return TopologyUpdate(text, topology, changed=changed)


async def parsed(text: TopologyText, parse: Callable[[], Topology]) -> Topology:
    """Return the parsed text; a large one is parsed in a thread, because it would block the event loop."""
    return await asyncio.to_thread(parse) if text.size > _LARGE_TEXT else parse()


async def read_file(path: Path) -> TopologyUpdate:
    """Read the file once; raises TensileError with every error in it, or with why it cannot be read."""
    found = _read_content(path)
    topology = await parsed(found.text(), lambda: _parse(path, found))
    return TopologyUpdate(found.text(), topology, changed=True, data=found.data)


async def follow_file(
    path: Path, first: Topology, watcher: FileWatcher, *, data: bytes = b"", sleep: Sleep = asyncio.sleep
) -> AsyncGenerator[TopologyUpdate, None]:
    """Yield each state of the file from now on, compared with `first` and later with the last good state.

    `data` are the bytes of `first`, if known. Never ends by itself; close it or cancel the task that awaits it.
    """
    follower, changed = _FileFollower(path, first, data, sleep), asyncio.Event()
    changed.set()
    with watcher.watch(watched([path]), changed.set):
        while True:
            await changed.wait()
            changed.clear()
            if await follower.poll():
                yield await follower.validate()


class _FileFollower:
    """A file that is followed: its last state, and its last good state."""

    def __init__(self, path: Path, first: Topology, data: bytes, sleep: Sleep) -> None:
        self._path = path
        self._sleep = sleep
        self._validator = TopologyValidator(first, str(path))
        self._last_valid_data = data
        self._last: _FileContent | None = None

    async def poll(self) -> bool:
        """Report whether the file has changed."""
        found = await self._read_settled()
        changed, self._last = found != self._last, found
        return changed

    async def validate(self) -> TopologyUpdate:
        """Return the result of the file as it was last read."""
        found = self._last or _read_content(self._path)
        reading = await self._validator.validate(found.text(), lambda: self._parse(found))
        if reading.topology is None:
            return reading
        self._last_valid_data = found.data
        return reading._replace(data=found.data)

    async def _read_settled(self) -> _FileContent:
        """Read until two reads return the same, so that a file that is being written is not taken as complete."""
        found = _read_content(self._path)
        while found != self._last:
            await self._sleep(SHRUNK if self._is_prefix(found.data) else SETTLE)
            before, found = found, _read_content(self._path)
            if found == before:
                break
        return found

    def _is_prefix(self, data: bytes) -> bool:
        return 0 < len(data) < len(self._last_valid_data) and self._last_valid_data.startswith(data)

    def _parse(self, found: _FileContent) -> Topology:
        """Return the parsed content; raises TensileError also if it is valid only because it was truncated."""
        topology = _parse(self._path, found)
        if topology != self._validator.last_valid and self._is_prefix(found.data) and not found.data.endswith(b"\n"):
            raise _cut_off(self._path, found.data)
        return topology


def _read_content(path: Path) -> _FileContent:
    """Read the path if it is a regular file; never more than the maximum size of a topology file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return _FileContent(b"", "not a regular file: use the path of a topology file")
        with path.open("rb") as file:
            return _FileContent(file.read(MAX_BYTES + 1), "")
    except FileNotFoundError:
        return _FileContent(b"", "no such file: create it, or name another with -f")
    except OSError as error:
        return _FileContent(b"", f"cannot be read: {error.strerror}: fix that, or name another with -f")


def _parse(path: Path, found: _FileContent) -> Topology:
    """Return the topology of the content; raises TensileError if it is not valid."""
    if found.problem:
        raise TensileError(f"{path}: {found.problem}")
    return parse(decode(found.data, name=str(path)), name=str(path))


def _cut_off(path: Path, data: bytes) -> TopologyErrors:
    """Return the error that names where the file was truncated."""
    line = data[data.rfind(b"\n") + 1 :].decode(errors="replace")
    position = Position(data.count(b"\n") + 1, len(line) + 1)
    message = "is a truncated copy of the active topology; write the whole file, with a newline at its end"
    return TopologyErrors(str(path), (TopologyProblem(position, (), message),))


class ConfigMapKey(NamedTuple):
    """The location of a topology: a ConfigMap of the upper cluster and a key in it."""

    namespace: str
    name: str
    key: str = CONFIGMAP_KEY

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def file(self) -> str:
        """The text used instead of a file name before line and column."""
        return f"configmap/{self.namespace}/{self.name}/{self.key}"


class ConfigMapText(NamedTuple):
    """The content of a ConfigMap: the topology's text and its identification, or why there is none."""

    text: TopologyText
    data: bytes = b""
    problem: str = ""


def document(manifest: Manifest | None, place: ConfigMapKey) -> ConfigMapText:
    """Return the topology's text in a ConfigMap (None: the ConfigMap does not exist)."""
    if manifest is None:
        problem = f"configmap/{place}: the ConfigMap does not exist in the upper cluster: create it"
        return ConfigMapText(TopologyText(), problem=problem)
    meta = metadata(manifest)
    identification = TopologyText(version=str(meta["resourceVersion"]), uid=str(meta["uid"]))
    data = _value(manifest, place.key)
    if data is None:
        return ConfigMapText(identification, problem=_no_key(manifest, place))
    return ConfigMapText(identification._replace(size=len(data), sha256=sha256(data).hexdigest()), data)


def read_configmap(found: ConfigMapText, place: ConfigMapKey) -> Topology:
    """Return the parsed topology; raises TensileError with every error in it, or with why there is none."""
    if found.problem:
        raise TensileError(found.problem)
    return parse(decode(found.data, name=place.file), name=place.file, configmap_mode=True)


async def follow_configmap(
    cache: Cache, place: ConfigMapKey, changed: asyncio.Event, first: Topology
) -> AsyncGenerator[TopologyUpdate, None]:
    """Yield each state of the ConfigMap, compared with `first` and later with the last good state.

    `changed` is set whenever the cache changes; states that pass while one is processed are skipped. Absence counts
    only once the cache is synced. Never ends by itself.
    """
    validator, last = TopologyValidator(first, place.file), None
    while True:
        changed.clear()
        entry = cache.get(place.namespace, place.name)
        found = document(entry.manifest() if entry else None, place)
        if found != last and (entry or cache.synced):
            last = found
            reading = await validator.validate(found.text, partial(read_configmap, found, place))
            yield reading if reading.topology is None else reading._replace(data=found.data)
        await changed.wait()


def _value(manifest: Manifest, key: str) -> bytes | None:
    """Return the value of a key, None if it is absent; `binaryData` is read too, where kubectl may have put it."""
    text = (manifest.get("data") or {}).get(key)
    if text is not None:
        return str(text).encode()
    encoded = (manifest.get("binaryData") or {}).get(key)
    return None if encoded is None else base64.b64decode(encoded)


def _no_key(manifest: Manifest, place: ConfigMapKey) -> str:
    keys = sorted({**(manifest.get("data") or {}), **(manifest.get("binaryData") or {})})
    listed = ", ".join(keys[:_MAX_KEYS]) + (", ..." if len(keys) > _MAX_KEYS else "")
    return (
        f"configmap/{place}: has no key {place.key} (keys: {listed or 'none'}): "
        "store the topology under it, or use --key"
    )
