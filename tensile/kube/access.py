"""From a kubeconfig, or from inside a pod, to what a connection needs: address, TLS context, credential.

A bad kubeconfig is an error and never leads elsewhere: falling back to the credentials of the pod this runs in would
make the upper cluster its own lower. Client certificates pass through a file for a moment, because Python's ssl takes
them from files only.
"""

import asyncio
import math
import os
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tensile.kube.kubeconfig import MAX_BYTES, AccessError, Entry, Material, parse, split_server

__all__ = ["Access", "AccessError", "from_kubeconfig", "from_text", "in_cluster"]

Clock = Callable[[], float]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 10.0
_PLUGIN_SECONDS = 30.0
_PLUGIN_MARGIN = 60.0
_PLUGIN_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach one cluster, as whom.

    `origin` names the file for people. `headers()` gives the credential's headers as of now, `renew()` reads everything
    anew from where it came. `good_until` is the moment of the monotonic clock at which the credential ends, if known.
    """

    origin: str
    url: str
    address: str
    port: int
    prefix: str
    server_name: str
    tls: ssl.SSLContext
    headers: Callable[[], Mapping[str, str]] = field(repr=False)
    renew: Callable[[], Awaitable["Access"]] = field(repr=False)
    good_until: float = math.inf

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
    entry = _anchored(parse(_read_text(path), context, str(path)), path)
    if entry.plugin is not None and not allow_exec_plugins:
        raise AccessError(
            f"{path}: exec plugins are refused, because they run programs: "
            "use a token or certificate, or start with --allow-exec-plugins"
        )

    async def renew() -> Access:
        """Read everything anew."""
        return await from_kubeconfig(path, context, allow_exec_plugins=allow_exec_plugins, clock=clock)

    return await _open(entry, str(path), renew, clock)


async def from_text(text: str, origin: str, context: str | None = None, *, clock: Clock = time.monotonic) -> Access:
    """Open the way that a kubeconfig out of a Secret describes; it may name no files and no programs.

    `origin` says in errors where it is from. Raises AccessError.
    """
    entry = parse(text, context, origin)
    if entry.files():
        raise AccessError(
            f"{origin}: names the file {entry.files()[0]}: in a Secret everything must be inline (…-data)"
        )
    if entry.plugin is not None:
        raise AccessError(f"{origin}: exec plugins are refused in a Secret: use a token or certificate")

    async def renew() -> Access:
        """Read everything anew."""
        return await from_text(text, origin, context, clock=clock)

    return await _open(entry, origin, renew, clock)


async def in_cluster(
    environment: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT, *, clock: Clock = time.monotonic
) -> Access:
    """Open the way from inside a pod to its own cluster, as its ServiceAccount. Raises AccessError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessError("not in a pod (KUBERNETES_SERVICE_HOST is not set): name a kubeconfig under upper.kubeconfig")
    entry = Entry(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        authority=Material(file=str(directory / "ca.crt")),
        token_file=str(directory / "token"),
    )

    async def renew() -> Access:
        """Read everything anew."""
        return await in_cluster(environment, directory, clock=clock)

    return await _open(entry, "the pod's ServiceAccount", renew, clock)


class _TokenFile:
    """The token in a file, read again every ten seconds: the kubelet replaces bound tokens in place."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._headers = _bearer(self._read())
        self._due = clock() + _TOKEN_SECONDS

    def __call__(self) -> Mapping[str, str]:
        """Give the headers; the same mapping as long as the token is the same."""
        if self._clock() >= self._due:
            self._due = self._clock() + _TOKEN_SECONDS
            self._refresh()
        return self._headers

    def _refresh(self) -> None:
        """Take over the file's token, if there is one."""
        try:
            fresh = _bearer(self._read())
        except AccessError:
            return  # half-way through a replacement; the apiserver tells when the old token has ended
        if fresh != self._headers:
            self._headers = fresh

    def _read(self) -> str:
        """Read the token."""
        token = _read_text(self._path).strip()
        if not token or any(sign in token for sign in "\r\n\0"):
            raise AccessError(f"{self._path}: holds no token: it must be one line of text")
        return token


async def _open(entry: Entry, origin: str, renew: Callable[[], Awaitable[Access]], clock: Clock) -> Access:
    """Make the access of an entry, after its plugin, if any, has answered."""
    good_until = math.inf
    if entry.plugin is not None:
        entry, good_until = await _ask_plugin(entry, origin, clock)
    parts = split_server(entry.server, origin)
    address = parts.hostname or ""
    return Access(
        origin=origin,
        url=entry.server,
        address=address,
        port=parts.port or 443,
        prefix=parts.path,
        server_name=entry.server_name or address,
        tls=_tls(entry, origin),
        headers=_headers(entry, clock),
        renew=renew,
        good_until=good_until,
    )


def _headers(entry: Entry, clock: Clock) -> Callable[[], Mapping[str, str]]:
    """Make what supplies the credential's headers."""
    if entry.token_file:
        return _TokenFile(Path(entry.token_file), clock)
    fixed = _bearer(entry.token) if entry.token else {}
    return lambda: fixed


def _bearer(token: str) -> Mapping[str, str]:
    """Make the header of a token."""
    return {"Authorization": f"Bearer {token}"}


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


def _read_text(path: Path) -> str:
    """Read a small text file."""
    return _read(path).decode(errors="replace")


def _read(path: Path) -> bytes:
    """Read a small file; more than a mebibyte of it is not wanted."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise AccessError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions") from None


def _pem(material: Material) -> bytes:
    """Give the bytes of inline or filed PEM."""
    return material.data or _read(Path(material.file))


def _tls(entry: Entry, origin: str) -> ssl.SSLContext:
    """Make the TLS context: checks the server against the cluster's CA (none given: the system's), shows our own."""
    context = ssl.create_default_context(cadata=_authority(entry, origin))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Newer Pythons demand extensions that the CAs of many clusters do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if any(entry.certificate):
        _show_certificate(context, _pem(entry.certificate) + b"\n" + _pem(entry.key), origin)
    return context


def _authority(entry: Entry, origin: str) -> str | None:
    """Give the CA's certificates as text, None when the system's are meant."""
    if not any(entry.authority):
        return None
    text = _pem(entry.authority).decode("ascii", errors="replace")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except ssl.SSLError:
        raise AccessError(f"{origin}: certificate-authority holds no certificate: give PEM") from None
    return text


def _show_certificate(context: ssl.SSLContext, pem: bytes, origin: str) -> None:
    """Let a TLS context show a client certificate; certificate and key are in `pem`."""

    def no_password() -> str:
        """Refuse to ask for a password."""
        raise AccessError(f"{origin}: client-key is encrypted: give it without a password")

    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        try:
            context.load_cert_chain(file.name, password=no_password)
        except ssl.SSLError:
            raise AccessError(f"{origin}: client-certificate and client-key are no pair in PEM: check both") from None


async def _ask_plugin(entry: Entry, origin: str, clock: Clock) -> tuple[Entry, float]:
    """Run the exec plugin; give the entry with its answer, and until when that is good."""
    try:
        async with asyncio.timeout(_PLUGIN_SECONDS):
            status = await _plugin(entry.plugin or {}, origin).run()
    except TimeoutError:
        raise AccessError(f"{origin}: the exec plugin did not answer in {_PLUGIN_SECONDS:.0f} s") from None
    except AccessError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a foreign program or the library that runs it makes of it
        raise AccessError(f"{origin}: the exec plugin failed ({type(error).__name__}): run it by hand") from None
    token = str(status.get("token") or "").strip()
    certificate = Material(str(status.get("clientCertificateData") or "").encode())
    key = Material(str(status.get("clientKeyData") or "").encode())
    if not (token or (certificate.data and key.data)) or any(sign in token for sign in "\r\n\0"):
        raise AccessError(
            f"{origin}: the exec plugin gave no credential: neither a token nor a certificate with its key"
        )
    answered = replace(entry, token=token, certificate=certificate, key=key, plugin=None)
    return answered, clock() + _lasts(status.get("expirationTimestamp"), time.time())


def _lasts(expiry: Any, now: float) -> float:
    """Give the seconds that a credential is to be used for; unlimited when its end is not told."""
    try:
        return max(datetime.fromisoformat(str(expiry)).timestamp() - now - _PLUGIN_MARGIN, 0.0)
    except ValueError:
        return math.inf


def _plugin(section: Mapping[str, Any], origin: str) -> Any:
    """Make the library's runner of an exec plugin, with an environment of its own."""
    # Imported here: it costs 0.3 s and 20 MiB that only those who use plugins should pay.
    from kubernetes.aio.config.exec_provider import ExecProvider  # noqa: PLC0415
    from kubernetes.aio.config.kube_config import ConfigNode  # noqa: PLC0415

    command = str(section.get("command") or "")
    if not Path(command).is_absolute():
        raise AccessError(f"{origin}: exec command {command!r} is refused: give its absolute path")
    provider = ExecProvider(ConfigNode("exec", {"apiVersion": "", **section}))
    inherited = {name: os.environ[name] for name in _PLUGIN_ENVIRONMENT if name in os.environ}
    provider.env = inherited | {str(i["name"]): str(i["value"]) for i in section.get("env") or []}
    return provider
