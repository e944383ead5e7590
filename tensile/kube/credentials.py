"""From a kubeconfig, or from inside a pod, to what a connection needs: address, TLS context, credential.

A bad kubeconfig is an error and never leads elsewhere: falling back to the credentials of the pod this runs in would
make the upper cluster its own lower. An access is never changed: when what it was read from changes, another one is
made, and whoever holds it decides whether that one is followed.

A kubeconfig that is kept in a Secret of the upper cluster: found in what the cache holds of it, and followed there.

A Secret that is gone or bad takes nothing away from the connection that is open: it is said, and nothing else.
Errors name the Secret and the key, never a value.

What a token says of itself: who it is for, and until when.

Nothing is verified here: what is read is a credential of our own, and its server decides what it is worth. The claims
are there before the first request, need no right, and are the same in every release, which an apiserver's answer to
"who am I" (SelfSubjectReview) is not.
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
from pathlib import Path
from typing import Any

import orjson

from tensile.errors import AccessError
from tensile.kube import tls
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.dial import read_server
from tensile.kube.exec_plugin import MARGIN, Plugin, question, read_answer, run_plugin
from tensile.kube.file_watch import Watched, watched
from tensile.kube.files import read_small
from tensile.kube.kubeconfig import MAX_BYTES, Entry, Material, decode, parse
from tensile.kube.store import Cache
from tensile.kube.strict_models import LONGEST_TOKEN, is_token
from tensile.kube.tls import Papers
from tensile.objects import SECRET, Manifest
from tensile.text import shown
from tensile.topology import SecretRef

__all__ = ["Access", "AccessError", "NoAccess", "from_kubeconfig", "from_text", "in_cluster"]

Clock = Callable[[], float]

NAME_ONE = "name a kubeconfig under upper.kubeconfig"
"""What to do outside of a pod where a topology file says how the upper cluster is reached."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_FROM_A_FILE = "because they run programs: use a token or certificate, or start with --allow-exec-plugins"
_FROM_ELSEWHERE = "in a Secret: use a token or certificate"


class NoAccess(AccessError):
    """Files give no access: as they were at `files`, and with an exec plugin (`asked`) also as that answered."""

    def __init__(self, error: AccessError, files: Watched, *, asked: bool) -> None:
        super().__init__(error.what, error.advice)
        self.files = files
        self.asked = asked


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one cluster, as whom.

    `origin` names for people what it was read from, `files` are the files among that, as they were then. `headers` are
    those of the credential. `renew()` reads everything anew from where it came. `good_until` is the moment of the
    monotonic clock at which the credential ends, if known. `papers` is what `tls` was made of. `flags` are those by
    which kubectl goes the same way; FILE stands for a kubeconfig that is in no file.
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
    files: Watched = field(default_factory=Watched)
    papers: Papers = field(default_factory=Papers, repr=False)
    flags: str = ""

    def shows(self) -> tuple[object, ...]:
        """Return all that the server gets to see of it; contains the credential. Equal: it makes no difference."""
        return self.url, self.server_name, self.papers, self.headers

    def keeping(self, known: "Access") -> "Access":
        """Return this access with the TLS context of another that was made of the same, so that connections stay."""
        return replace(self, tls=known.tls) if self.papers == known.papers else self

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken."""
        return self.url.startswith("https:")


async def from_kubeconfig(
    path: Path, context: str | None = None, *, allow_exec_plugins: bool = False, clock: Clock = time.monotonic
) -> Access:
    """Open the way that `context` (None: the current-context) of the kubeconfig at `path` describes.

    Files named in it are relative to it, as in Kubernetes. Exec plugins run only when allowed, and only by absolute
    path. Raises AccessError.
    """
    origin = shown(path, 200)
    before = watched([path])
    with _naming(before):
        text = decode(read_small(path, MAX_BYTES), origin)
        entry = _anchored(parse(text, context, origin, no_plugins="" if allow_exec_plugins else _FROM_A_FILE), path)

    async def renew() -> Access:
        """Read everything anew."""
        return await from_kubeconfig(path, context, allow_exec_plugins=allow_exec_plugins, clock=clock)

    return replace(await _open(entry, origin, renew, clock, before), flags=_flags(str(path), context))


async def from_text(
    text: str | bytes, origin: str, context: str | None = None, *, clock: Clock = time.monotonic
) -> Access:
    """Open the way that a kubeconfig out of a Secret describes; it may use nothing outside of itself.

    No file is opened for it and no program run. `origin` says in errors where it is from. Its `renew` gives the same
    again: who has a newer text makes another access. Raises AccessError.
    """
    decoded = decode(text, origin) if isinstance(text, bytes) else text
    entry = parse(decoded, context, origin, no_plugins=_FROM_ELSEWHERE)
    if entry.files():
        raise AccessError(
            f"{origin}: names a file for a certificate, key or token",
            "in a Secret everything must be inline (…-data, token)",
        )

    async def renew() -> Access:
        """Read everything anew."""
        return await from_text(text, origin, context, clock=clock)

    return replace(await _open(entry, origin, renew, clock, Watched()), flags=_flags("FILE", context))


async def in_cluster(
    environment: Mapping[str, str] = os.environ,
    directory: Path = SERVICE_ACCOUNT,
    *,
    instead: str = NAME_ONE,
    clock: Clock = time.monotonic,
) -> Access:
    """Open the way from inside a pod to its own cluster, as its ServiceAccount.

    Raises AccessError outside of one, which says what to do `instead`.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessError("not in a pod (KUBERNETES_SERVICE_HOST is not set)", instead)
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    entry = Entry(
        server=server,
        address=read_server(server, "KUBERNETES_SERVICE_HOST and _PORT"),
        authority=Material(file=str(directory / "ca.crt")),
        token_file=str(directory / "token"),
    )

    async def renew() -> Access:
        """Read everything anew."""
        return await in_cluster(environment, directory, instead=instead, clock=clock)

    return await _open(entry, "the pod's ServiceAccount", renew, clock, Watched())


def _flags(kubeconfig: str, context: str | None) -> str:
    """Return the flags of kubectl for a kubeconfig and its context."""
    return shlex.join(["--kubeconfig", kubeconfig, *([] if context is None else ["--context", context])])


async def _open(
    entry: Entry, origin: str, renew: Callable[[], Awaitable[Access]], clock: Clock, before: Watched
) -> Access:
    """Make the access of an entry, after its plugin, if any, has answered; `before` is how its own file was."""
    needed = watched(entry.needed())
    files = Watched(before.paths + needed.paths, before.marks + needed.marks)
    with _naming(files, asked=entry.plugin is not None):
        return await _read(entry, origin, renew, clock, files)


@contextmanager
def _naming(files: Watched, *, asked: bool = False) -> Iterator[None]:
    """Have an AccessError tell of the files that it was about."""
    try:
        yield
    except AccessError as error:
        raise NoAccess(error, files, asked=asked) from None


async def _read(
    entry: Entry, origin: str, renew: Callable[[], Awaitable[Access]], clock: Clock, files: Watched
) -> Access:
    """Make the access of an entry whose `files` were looked at."""
    good_until = math.inf
    if entry.plugin is not None:
        entry, good_until = await _ask(entry, entry.plugin, origin, clock)
    papers = Papers(*(_pem(one) for one in (entry.authority, entry.certificate, entry.key)))
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
    """Read the token in a file."""
    token = read_small(file, MAX_BYTES).decode("latin-1").strip()
    if not token or not is_token(token):
        raise AccessError(
            f"{shown(file, 200)}: holds no token", f"it must be one line of at most {LONGEST_TOKEN} visible characters"
        )
    return token


def _pem(material: Material) -> bytes:
    """Return the bytes of inline or filed PEM, b"" where there is none."""
    if material.data or not material.file:
        return material.data
    return read_small(material.file, MAX_BYTES)


def _anchored(entry: Entry, kubeconfig: Path) -> Entry:
    """Make the entry's file names absolute."""
    directory = kubeconfig.absolute().parent

    def anchor(file: str) -> str:
        """Make a file name absolute, nothing stays nothing."""
        return str(directory / file) if file else ""

    return replace(
        entry,
        authority=entry.authority._replace(file=anchor(entry.authority.file)),
        certificate=entry.certificate._replace(file=anchor(entry.certificate.file)),
        key=entry.key._replace(file=anchor(entry.key.file)),
        token_file=anchor(entry.token_file),
    )


async def _ask(entry: Entry, plugin: Plugin, origin: str, clock: Clock) -> tuple[Entry, float]:
    """Run the exec plugin; give the entry with its answer, and until when that is good."""
    authority = base64.b64encode(_pem(entry.authority)).decode()
    asked = question(plugin, entry.server, entry.server_name, authority)
    answer = read_answer(await run_plugin(plugin, asked, origin), plugin.api_version, origin)
    certificate, key = Material(answer.certificate.encode()), Material(answer.key.encode())
    answered = replace(entry, token=answer.token, certificate=certificate, key=key, plugin=None)
    left = math.inf if answer.until is None else max(answer.until - time.time() - MARGIN, 0.0)
    return answered, clock() + left


_MOST_NAMED = 10


async def keep_secret(upper: Cluster, ref: SecretRef, found: Cache) -> None:
    """Have a cache know one Secret of the upper cluster, if it is there; raises ClusterError.

    It is listed: that is what an engine may, which follows Secrets and reads none by itself.
    """
    listing = await upper.list(SECRET, Selection(ref.namespace, fields=f"metadata.name={ref.name}"))
    for raw in listing.items:
        found.put(raw)


class KeptKubeconfig:
    """The kubeconfig in a Secret. `trouble` says what is wrong with it since it was last good, "" for nothing."""

    def __init__(self, secrets: Cache, ref: SecretRef, context: str | None) -> None:
        self.trouble = ""
        self._secrets = secrets
        self._ref = ref
        self._context = context
        self._seen: tuple[str, int] | None = None
        self._text = ""

    async def access(self) -> Access:
        """Open the way that it describes; raises AccessError."""
        self._seen = self._state()
        text = kubeconfig_in(self._secrets, self._ref)
        found = await from_text(text, _origin(self._ref), self._context)
        self._text = text
        return found

    async def look(self) -> Access | None:
        """Return the way that it describes by now; None where that is the one before, or cannot be used."""
        if not self._secrets.synced or not self.is_other():
            return None
        before = self._text
        try:
            found = await self.access()
        except AccessError as error:
            self.trouble = f"{error}; the last good connection is kept"
            return None
        self.trouble = ""
        return found if self._text != before else None

    def is_other(self) -> bool:
        """Report whether the Secret is not as it was when it was read."""
        return self._state() != self._seen

    def _state(self) -> tuple[str, int] | None:
        entry = self._secrets.get(self._ref.namespace, self._ref.name)
        return (entry.uid, entry.version) if entry is not None else None


def kubeconfig_in(secrets: Cache, ref: SecretRef) -> str:
    """Return the kubeconfig's text; raises AccessError where there is none."""
    entry = secrets.get(ref.namespace, ref.name)
    if entry is None:
        raise AccessError(f"{_origin(ref)}: there is no such Secret", "create it, or correct kubeconfigSecret")
    try:
        return base64.b64decode(_value(entry.manifest(), ref), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise AccessError(f"{_origin(ref)}: not text in UTF-8", "put a kubeconfig there") from None


def _origin(ref: SecretRef) -> str:
    return f"Secret {ref.namespace}/{ref.name} of the upper cluster, key {ref.key}"


def _value(secret: Manifest, ref: SecretRef) -> str:
    data = secret.get("data") or {}
    if not data.get(ref.key):
        keys = sorted(data)[:_MOST_NAMED]
        raise AccessError(
            f"{_origin(ref)}: nothing stands under that key (there are: {', '.join(keys) or 'none'})",
            "put the kubeconfig there, or name its key in kubeconfigSecret.key",
        )
    return str(data[ref.key])


_BEARER = "Bearer "
_ACCOUNT = ("system", "serviceaccount")
_PARTS = 4


def token_in(access: Access) -> str:
    """Return the token by which a cluster is called, "" where it is called by a certificate or by none."""
    return access.headers.get("Authorization", "").removeprefix(_BEARER)


def claims_of(token: str) -> Mapping[str, Any]:
    """Return what a JWT says in its second part, {} for a token of another form."""
    try:
        part = token.split(".")[1]
        said = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return said if isinstance(said, dict) else {}


def account_namespace(access: Access) -> str:
    """Return the namespace of the ServiceAccount that a cluster is called as, "" where that is none."""
    parts = str(claims_of(token_in(access)).get("sub", "")).split(":")
    return parts[2] if len(parts) == _PARTS and (parts[0], parts[1]) == _ACCOUNT else ""
