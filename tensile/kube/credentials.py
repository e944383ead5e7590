"""Access to clusters: from a kubeconfig or a pod's ServiceAccount to an address, a TLS context and a credential.

A bad kubeconfig is an error and never falls back to the credentials of the engine's pod, which would make the upper
cluster its own lower. An access is immutable: when its source changes, a new one is made, and the holder decides
whether to use it. A kubeconfig in a Secret of the upper cluster is read from the cache. If the Secret is deleted or
becomes invalid, the open connection stays and the problem is reported. Errors name the Secret and the key, never a
value.

The claims of a token are read without verification: it is our own credential, and the server verifies it. Claims are
available before the first request, need no permission and are the same in every release, unlike SelfSubjectReview.
"""

import base64
import binascii
import math
import os
import shlex
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from tensile.errors import AccessError
from tensile.kube import tls
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.dial import read_server
from tensile.kube.exec_plugin import MARGIN, question, read_answer, run_plugin
from tensile.kube.file_watch import FileStates, watched
from tensile.kube.files import read_small
from tensile.kube.kubeconfig import LONGEST_TOKEN, ExecPlugin, KubeconfigEntry, PEMSource, decode, is_token, parse
from tensile.kube.store import Cache
from tensile.kube.tls import TLSMaterial
from tensile.objects import SECRET
from tensile.text import shown
from tensile.topology import SecretRef
from tensile.yaml_document import MAX_BYTES

__all__ = ["Access", "AccessError", "CredentialsUnavailable", "from_kubeconfig", "from_text", "in_cluster"]

Clock = Callable[[], float]

NAME_ONE = "name a kubeconfig under upper.kubeconfig"
"""What to do outside of a pod, where a topology file configures the access to the upper cluster."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FROM_A_FILE = "because they run programs: use a token or certificate, or start with --allow-exec-plugins"
_FROM_ELSEWHERE = "in a Secret: use a token or certificate"

_MOST_NAMED = 10
_BEARER = "Bearer "
_ACCOUNT = ("system", "serviceaccount")
_PARTS = 4


class CredentialsUnavailable(AccessError):
    """The files give no access. `files` is their state then. `uses_plugin`: an exec plugin is part of the access."""

    def __init__(self, error: AccessError, files: FileStates, *, uses_plugin: bool) -> None:
        super().__init__(error.what, error.advice)
        self.files = files
        self.uses_plugin = uses_plugin


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one cluster, and with which credential.

    `origin` names the source for people. `files` are the files of the source, with their state when read. `headers`
    carry the credential. `renew()` reads everything again from the source. `good_until` is the monotonic time at which
    the credential expires, if known. `papers` are the inputs of `tls`. `flags` are the kubectl flags for the same
    access, with FILE for a kubeconfig that is not in a file.
    """

    origin: str
    url: str
    address: str
    port: int
    prefix: str
    server_name: str
    tls: ssl.SSLContext
    headers: Mapping[str, str] = field(repr=False)
    renew: Callable[[], Awaitable["Access"]] = field(repr=False)
    good_until: float = math.inf
    files: FileStates = field(default_factory=FileStates)
    papers: TLSMaterial = field(default_factory=TLSMaterial, repr=False)
    flags: str = ""

    def visible_parts(self) -> tuple[object, ...]:
        """Return everything that the server sees of this access, including the credential.

        Equal results mean the same access.
        """
        return self.url, self.server_name, self.papers, self.headers

    def with_tls_of(self, known: "Access") -> "Access":
        """Return this access with the other's TLS context if both have the same inputs, to keep connections."""
        return replace(self, tls=known.tls) if self.papers == known.papers else self

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.url.startswith("https:")


async def from_kubeconfig(
    path: Path, context: str | None = None, *, allow_exec_plugins: bool = False, clock: Clock = time.monotonic
) -> Access:
    """Return the access for `context` (None: the current-context) of the kubeconfig at `path`.

    Files named in it are relative to it, as in Kubernetes. Exec plugins run only if allowed, and only by absolute path.
    Raises AccessError.
    """
    origin = shown(path, 200)
    before = watched([path])
    with _with_files(before):
        text = decode(read_small(path, MAX_BYTES), origin)
        entry = _anchored(parse(text, context, origin, no_plugins="" if allow_exec_plugins else _FROM_A_FILE), path)

    async def renew() -> Access:
        """Read everything again."""
        return await from_kubeconfig(path, context, allow_exec_plugins=allow_exec_plugins, clock=clock)

    return replace(await _open(entry, origin, renew, clock, before), flags=_flags(str(path), context))


def context_namespace(path: Path, context: str | None = None) -> str:
    """Return the namespace of a kubeconfig's `context` (None: the current-context), "" for none.

    Raises AccessError.
    """
    origin = shown(path, 200)
    return parse(decode(read_small(path, MAX_BYTES), origin), context, origin).namespace


async def from_text(
    text: str | bytes, origin: str, context: str | None = None, *, clock: Clock = time.monotonic
) -> Access:
    """Return the access for a kubeconfig from a Secret, which must be self-contained.

    It may open no file and run no program. `origin` names its source in errors. Its `renew` returns the same again: the
    holder of a newer text makes another access. Raises AccessError.
    """
    decoded = decode(text, origin) if isinstance(text, bytes) else text
    entry = parse(decoded, context, origin, no_plugins=_FROM_ELSEWHERE)
    if entry.files():
        raise AccessError(
            f"{origin}: names a file for a certificate, key or token",
            "in a Secret everything must be inline (…-data, token)",
        )

    async def renew() -> Access:
        """Read everything again."""
        return await from_text(text, origin, context, clock=clock)

    return replace(await _open(entry, origin, renew, clock, FileStates()), flags=_flags("FILE", context))


async def in_cluster(
    environment: Mapping[str, str] = os.environ,
    directory: Path = SERVICE_ACCOUNT,
    *,
    instead: str = NAME_ONE,
    clock: Clock = time.monotonic,
) -> Access:
    """Return the access from inside a pod to its own cluster, as its ServiceAccount.

    Outside of a pod, raises AccessError, which recommends `instead`.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessError("not in a pod (KUBERNETES_SERVICE_HOST is not set)", instead)
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    entry = KubeconfigEntry(
        server=server,
        address=read_server(server, "KUBERNETES_SERVICE_HOST and _PORT"),
        authority=PEMSource(file=str(directory / "ca.crt")),
        token_file=str(directory / "token"),
    )

    async def renew() -> Access:
        """Read everything again."""
        return await in_cluster(environment, directory, instead=instead, clock=clock)

    return await _open(entry, "the pod's ServiceAccount", renew, clock, FileStates())


def _flags(kubeconfig: str, context: str | None) -> str:
    """Return the kubectl flags for a kubeconfig and its context."""
    return shlex.join(["--kubeconfig", kubeconfig, *([] if context is None else ["--context", context])])


async def _open(
    entry: KubeconfigEntry, origin: str, renew: Callable[[], Awaitable[Access]], clock: Clock, before: FileStates
) -> Access:
    """Return the access of an entry. Its exec plugin, if any, runs first. `before` is the state of its own file."""
    needed = watched(entry.needed())
    files = FileStates(before.paths + needed.paths, before.marks + needed.marks)
    with _with_files(files, uses_plugin=entry.plugin is not None):
        return await _read(entry, origin, renew, clock, files)


@contextmanager
def _with_files(files: FileStates, *, uses_plugin: bool = False) -> Iterator[None]:
    """Add the files to an AccessError from the block. Without files, as for a Secret, there is nothing to add."""
    try:
        yield
    except AccessError as error:
        if not (files.paths or uses_plugin):
            raise
        raise CredentialsUnavailable(error, files, uses_plugin=uses_plugin) from None


async def _read(
    entry: KubeconfigEntry, origin: str, renew: Callable[[], Awaitable[Access]], clock: Clock, files: FileStates
) -> Access:
    """Return the access of an entry. `files` is the state of its files."""
    good_until = math.inf
    if entry.plugin is not None:
        entry, good_until = await _run_exec_plugin(entry, entry.plugin, origin, clock)
    papers = TLSMaterial(*(_pem(one) for one in (entry.authority, entry.certificate, entry.key)))
    token = _token(entry.token_file) if entry.token_file else entry.token
    return Access(
        origin=origin,
        url=entry.server,
        address=entry.address.host,
        port=entry.address.port,
        prefix=entry.address.path,
        server_name=entry.server_name or entry.address.host,
        tls=tls.context(papers, origin),
        headers={"Authorization": f"Bearer {token}"} if token else {},
        renew=renew,
        good_until=good_until,
        files=files,
        papers=papers,
    )


def _token(file: str) -> str:
    """Return the token in a file."""
    token = read_small(file, MAX_BYTES).decode("latin-1").strip()
    if not token or not is_token(token):
        raise AccessError(
            f"{shown(file, 200)}: contains no valid token",
            f"it must be one line of at most {LONGEST_TOKEN} visible characters",
        )
    return token


def _pem(material: PEMSource) -> bytes:
    """Return the bytes of inline PEM or of a PEM file, b"" for none."""
    if material.data or not material.file:
        return material.data
    return read_small(material.file, MAX_BYTES)


def _anchored(entry: KubeconfigEntry, kubeconfig: Path) -> KubeconfigEntry:
    """Make the entry's file names absolute."""
    directory = kubeconfig.absolute().parent

    def anchor(file: str) -> str:
        """Make a file name absolute. "" stays ""."""
        return str(directory / file) if file else ""

    return replace(
        entry,
        authority=entry.authority._replace(file=anchor(entry.authority.file)),
        certificate=entry.certificate._replace(file=anchor(entry.certificate.file)),
        key=entry.key._replace(file=anchor(entry.key.file)),
        token_file=anchor(entry.token_file),
    )


async def _run_exec_plugin(
    entry: KubeconfigEntry, plugin: ExecPlugin, origin: str, clock: Clock
) -> tuple[KubeconfigEntry, float]:
    """Run the exec plugin. Return the entry with the plugin's credential, and when that expires."""
    authority = base64.b64encode(_pem(entry.authority)).decode()
    plugin_input = question(plugin, entry.server, entry.server_name, authority, entry.plugin_config)
    answer = read_answer(await run_plugin(plugin, plugin_input, origin), plugin, origin)
    certificate, key = PEMSource(answer.certificate.encode()), PEMSource(answer.key.encode())
    resolved = replace(entry, token=answer.token, certificate=certificate, key=key, plugin=None)
    remaining = math.inf if answer.until is None else max(answer.until - time.time() - MARGIN, 0.0)
    return resolved, clock() + remaining


async def keep_secret(upper: Cluster, ref: SecretRef, found: Cache) -> None:
    """Add one Secret of the upper cluster to a cache, if it exists. Raises ClusterError.

    It uses a list: an engine is allowed to list and watch Secrets, but not to get one.
    """
    listing = await upper.list(SECRET, Selection(ref.namespace, fields=f"metadata.name={ref.name}"))
    for raw in listing.items:
        found.put(raw)


class SecretKubeconfig:
    """The kubeconfig in a Secret. `error` says what is wrong since it was last valid, "" for nothing."""

    def __init__(self, secrets: Cache, ref: SecretRef, context: str | None) -> None:
        self.error = ""
        self._secrets = secrets
        self._ref = ref
        self._context = context
        self._seen: tuple[str, int] | None = None
        self._text = ""

    async def access(self) -> Access:
        """Read the Secret, and return the access that it describes. Raises AccessError."""
        self._seen = self._state()
        text = kubeconfig_in(self._secrets, self._ref)
        found = await from_text(text, _origin(self._ref), self._context)
        self._text = text
        return found

    async def refresh(self) -> Access | None:
        """Read the Secret again if it changed. Return the new access, None if it is the same or cannot be used."""
        if not self._secrets.synced or not self.is_other():
            return None
        before = self._text
        try:
            found = await self.access()
        except AccessError as error:
            self.error = f"{error}; the last good connection is kept"
            return None
        self.error = ""
        return found if self._text != before else None

    def is_other(self) -> bool:
        """Report whether the Secret changed since it was read."""
        return self._state() != self._seen

    def _state(self) -> tuple[str, int] | None:
        entry = self._secrets.get(self._ref.namespace, self._ref.name)
        return (entry.uid, entry.version) if entry is not None else None


def kubeconfig_in(secrets: Cache, ref: SecretRef) -> str:
    """Return the kubeconfig's text. Raises AccessError where there is none."""
    entry = secrets.get(ref.namespace, ref.name)
    if entry is None:
        raise AccessError(f"{_origin(ref)}: the Secret does not exist", "create it, or correct kubeconfigSecret")
    data = entry.manifest().get("data") or {}
    if not data.get(ref.key):
        keys = sorted(data)[:_MOST_NAMED]
        raise AccessError(
            f"{_origin(ref)}: the key is missing or empty (keys: {', '.join(keys) or 'none'})",
            "store the kubeconfig under it, or correct kubeconfigSecret.key",
        )
    try:
        return base64.b64decode(str(data[ref.key]), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise AccessError(f"{_origin(ref)}: not UTF-8 text", "store a kubeconfig under this key") from None


def _origin(ref: SecretRef) -> str:
    return f"Secret {ref.namespace}/{ref.name} of the upper cluster, key {ref.key}"


def token_in(access: Access) -> str:
    """Return the bearer token of an access, "" for a client certificate or no credential."""
    return access.headers.get("Authorization", "").removeprefix(_BEARER)


def claims_of(token: str) -> Mapping[str, Any]:
    """Return the claims of a JWT, {} for a token in another format."""
    try:
        payload = token.split(".")[1]
        claims = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def expiry_of(claims: Mapping[str, Any]) -> datetime | None:
    """Return the expiry that the claims of a JWT have, None for none, or for none that is a time."""
    try:
        return datetime.fromtimestamp(claims["exp"], UTC)
    except (KeyError, OverflowError, OSError, TypeError, ValueError):
        return None


def token_expiry(access: Access, now: datetime) -> str:
    """Return since when the token of an access has been expired, "" if it is not, or if that is not known."""
    until = expiry_of(claims_of(token_in(access)))
    return f"its token expired on {tls.date_of(until)}" if until and until < now else ""


def account_namespace(access: Access) -> str:
    """Return the namespace of the ServiceAccount in an access's token, "" for another identity."""
    parts = str(claims_of(token_in(access)).get("sub", "")).split(":")
    return parts[2] if len(parts) == _PARTS and (parts[0], parts[1]) == _ACCOUNT else ""
