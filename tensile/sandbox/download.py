"""Downloads released programs from their projects, and verifies each by its SHA-256 before it gets its name.

Kubernetes publishes each program as a file, next to its SHA-256. etcd publishes an archive, and the SHA-256 of all
archives of a release in one file. kwok publishes no checksums, so those of the version in use are kept here.
$TENSILE_RELEASES names a mirror: an https address with the same files, in a folder for each host, as `wget --mirror`
stores them. `off` disables downloads.

Whether the hosts answer is tried first, for at most 3 s, so that a machine without network begins to build at once.
Then all checksums are fetched, so that a missing file is noticed before hundreds of megabytes are transferred.

Every failure is a DownloadError, on which the caller builds the program. An error while writing to the disk is not:
a build would fail too. Messages have only the address of the release, since hosts redirect to addresses with tokens.
"""

import hashlib
import http.client
import os
import re
import shutil
import socket
import ssl
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn
from urllib.parse import urljoin, urlsplit

from tensile.sandbox.state import SandboxError
from tensile.text import Updates

VARIABLE = "TENSILE_RELEASES"
OFF = "off"
KUBERNETES_RELEASES = "https://dl.k8s.io/release"
ETCD_RELEASES = "https://github.com/etcd-io/etcd/releases/download"
KWOK_RELEASES = "https://github.com/kubernetes-sigs/kwok/releases/download"
ETCD = "v3.6.8"
"""The release that the sources of the control plane require too."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Go's name of each architecture that the kernel reports and that all three projects publish programs for."""
KWOK_DIGESTS = {
    ("v0.8.0", "amd64"): "f5a4385a2ae1b9dd7f8acae18e002a75c0ebba124ae9d7259aa8dadb50711f46",
    ("v0.8.0", "arm64"): "628f7d277860f524a2a775c217adcc58828e7b59ab0933680315784f1b8b0e37",
}
"""The SHA-256 of kwok's programs, by version and architecture."""
_SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_DIGEST = re.compile(r"[0-9a-f]{64}")
CHUNK = 1 << 18
MEGABYTE = 1_000_000
CHECKSUMS_SIZE = 1 << 16
"""The maximum size in bytes of a file of checksums."""
PARTIAL = ".part"
"""The end of the name of a file that is not verified yet."""
AGENT = "tensile-sandbox"


@dataclass(frozen=True)
class ReleasedFile:
    """A file of a release.

    Attributes:
        program: the name of the program that it is or contains.
        version: the version of the program.
        url: its address at the project.
        checksums: the address of the file that has its SHA-256, "" if `digest` is given.
        digest: its SHA-256 in hexadecimal, "" if it is published.
        member: the path of the program in the archive; "" if the file is the program.
    """

    program: str
    version: str
    url: str
    checksums: str = ""
    digest: str = ""
    member: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


def control_plane(version: str, architecture: str) -> tuple[ReleasedFile, ...]:
    """Return the files of a control plane of a release of Kubernetes; etcd's version is always the same."""
    servers = (_of_kubernetes(program, version, architecture) for program in _SERVERS)
    name = f"etcd-{ETCD}-linux-{architecture}"
    release = f"{ETCD_RELEASES}/{ETCD}"
    etcd = ReleasedFile("etcd", ETCD, f"{release}/{name}.tar.gz", f"{release}/SHA256SUMS", member=f"{name}/etcd")
    return (*servers, etcd)


def kubelet(version: str, architecture: str) -> tuple[ReleasedFile, ...]:
    """Return the file of the kubelet of a release of Kubernetes."""
    return (_of_kubernetes("kubelet", version, architecture),)


def kwok(version: str, architecture: str) -> tuple[ReleasedFile, ...]:
    """Return the file of kwok, nothing if its checksum is not known."""
    digest = KWOK_DIGESTS.get((version, architecture))
    url = f"{KWOK_RELEASES}/{version}/kwok-linux-{architecture}"
    return (ReleasedFile("kwok", version, url, digest=digest),) if digest else ()


def _of_kubernetes(program: str, version: str, architecture: str) -> ReleasedFile:
    url = f"{KUBERNETES_RELEASES}/{version}/bin/linux/{architecture}/{program}"
    return ReleasedFile(program, version, url, f"{url}.sha256")


def published_digest(text: str, name: str) -> str:
    """Return the SHA-256 of a file from a published file of checksums, "" if it has none.

    Args:
        text: a digest alone, or lines of a digest and a name, as `sha256sum` prints them.
        name: the name of the file.
    """
    rows = [line.split() for line in text.splitlines() if line.strip()]
    is_bare_digest = len(rows) == 1 and len(rows[0]) == 1
    found = [row[0].lower() for row in rows if is_bare_digest or (len(row) > 1 and row[1].lstrip("*") == name)]
    return found[0] if found and _DIGEST.fullmatch(found[0]) else ""


def mirror(environ: Mapping[str, str]) -> str | None:
    """Return the address that $TENSILE_RELEASES names, "" for the projects' own hosts, None if downloads are off.

    Raises:
        SandboxError: this is no address that programs may come from.
    """
    value = environ.get(VARIABLE, "").strip()
    if value == OFF:
        return None
    if value and not _is_mirror(value):
        raise SandboxError(
            f"${VARIABLE}: give the https address of a mirror, without user, password and query, or `{OFF}` to build"
        )
    return value.rstrip("/")


def mirrored(url: str, address: str) -> str:
    """Return the address of a file at a mirror, its own address if that is ""."""
    return f"{address}/{url.removeprefix('https://')}" if address else url


def _is_mirror(address: str) -> bool:
    """Report whether an address is https, or http on loopback, and has nothing secret in it."""
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018  # raises ValueError for a port that is no number
    except ValueError:
        return False
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class DownloadError(SandboxError):
    """A released file cannot be downloaded; the message names it and the reason."""


@dataclass(frozen=True)
class DownloadLimits:
    """Limits of downloads, in seconds and bytes.

    Attributes:
        answer: until every host, or the proxy, must have accepted a connection.
        idle: how long a transfer may stand still.
        whole: how long all files of a set may take; a build is faster then.
        size: the size of a file, also of one in an archive.
    """

    answer: float = 3.0
    idle: float = 15.0
    whole: float = 600.0
    size: int = 512 * MEGABYTE


@dataclass(frozen=True)
class ReleaseHosts:
    """Where released files are, and how they are fetched.

    Attributes:
        address: the mirror, "" for the projects' own hosts.
        proxy: the proxy for https, "" for none.
        limits: the limits.
        trust: the certificate authorities, None for the machine's.
        clock: the time in seconds.
    """

    address: str = ""
    proxy: str = ""
    limits: DownloadLimits = field(default_factory=DownloadLimits)
    trust: ssl.SSLContext | None = None
    clock: Callable[[], float] = time.monotonic


def release_hosts(environ: Mapping[str, str]) -> ReleaseHosts | None:
    """Return where the environment says that released files are, None if nothing may be downloaded.

    Raises:
        SandboxError: it says something else.
    """
    address = mirror(environ)
    if address is None:
        return None
    return ReleaseHosts(address, environ.get("https_proxy") or environ.get("HTTPS_PROXY", ""))


def download(files: Sequence[ReleasedFile], folder: Path, hosts: ReleaseHosts, updates: Updates) -> None:
    """Download programs into a folder. Each file there is verified and executable, except after an error.

    Args:
        files: the files of the programs.
        folder: an existing folder.
        hosts: where the files are.
        updates: gets reports.

    Raises:
        DownloadError: a file cannot be downloaded, or has another checksum; no partial file of it is left.
        OSError: it cannot be written.
    """
    _await_answers({mirrored(file.url, hosts.address) for file in files}, hosts)
    transfer = _Transfer(hosts, hosts.clock() + hosts.limits.whole)
    wanted = [(file, transfer.digest(file)) for file in files]
    for file, digest in wanted:
        with _partial(folder / file.name) as partial:
            transfer.save(file, digest, partial, updates)
            if not file.member:
                _publish(partial, folder / file.program)
                continue
            with _partial(folder / file.program) as unpacked:
                _unpack(partial, file, unpacked, hosts.limits.size)
                _publish(unpacked, folder / file.program)


class _Transfer:
    """The requests for one set of programs, which end together at a deadline."""

    def __init__(self, hosts: ReleaseHosts, deadline: float) -> None:
        self._hosts = hosts
        self._deadline = deadline
        self._opener = _opener(hosts)

    def digest(self, file: ReleasedFile) -> str:
        """Return the SHA-256 that a file must have."""
        if file.digest:
            return file.digest
        url = mirrored(file.checksums, self._hosts.address)
        text = b"".join(chunk for chunk, _ in self._chunks(url, CHECKSUMS_SIZE))
        digest = published_digest(text.decode(errors="replace"), file.name)
        if not digest:
            raise DownloadError(f"{url}: it has no sha256 of {file.name}")
        return digest

    def save(self, file: ReleasedFile, digest: str, path: Path, updates: Updates) -> None:
        """Write a file to a path; raises DownloadError if it does not have that SHA-256."""
        url = mirrored(file.url, self._hosts.address)
        hashed = hashlib.sha256()
        size, start_time = 0, self._hosts.clock()
        with path.open("xb") as sink:
            for chunk, total in self._chunks(url, self._hosts.limits.size):
                sink.write(chunk)
                hashed.update(chunk)
                size += len(chunk)
                progress = amount(size, total, self._hosts.clock() - start_time)
                updates.show(f"downloading {file.program} {file.version}  {progress}")
            _sync(sink)
        if (found := hashed.hexdigest()) != digest:
            origin = mirrored(file.checksums, self._hosts.address) if file.checksums else "tensile"
            raise DownloadError(
                f"{url}: wrong checksum, the file was deleted: expected sha256 {digest} (by {origin}), got {found}"
            )

    def _chunks(self, url: str, max_size: int) -> Iterator[tuple[bytes, int]]:
        """Yield the parts of a file, each with the size of the whole file, 0 if that is not known."""
        limits = self._hosts.limits
        size = 0
        with _translated_errors(url, limits.idle), self._opener.open(_request(url), timeout=limits.idle) as response:
            total = int(response.headers.get("Content-Length") or 0)
            if total > max_size:
                raise DownloadError(f"{url}: {total} bytes, more than the {max_size} bytes that are allowed")
            while chunk := response.read1(CHUNK):
                size += len(chunk)
                if size > max_size:
                    raise DownloadError(f"{url}: more than the {max_size} bytes that are allowed")
                if self._hosts.clock() > self._deadline:
                    raise DownloadError(f"{url}: too slow, not all files arrived within {limits.whole:g} s")
                yield chunk, total
        if size < total:
            raise DownloadError(f"{url}: the connection ended after {size} of {total} bytes")


def amount(size: int, total: int, seconds: float) -> str:
    """Return how much of a file has arrived after some seconds, and how long the rest takes at that rate.

    Args:
        size: the bytes that have arrived.
        total: the bytes of the whole file, 0 if not known.
        seconds: the time since the first byte was asked for.
    """
    if total <= 0:
        return f"{size / MEGABYTE:.0f} MB"
    text = f"{size / MEGABYTE:.0f} of {total / MEGABYTE:.0f} MB"
    if size <= 0 or seconds <= 0:
        return text
    return f"{text}, {(total - size) / (size / seconds):.0f} s left"


class _OnlySecure(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https only."""

    def http_error_302(  # the library's signature
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage
    ) -> Any:
        """Return the response of the next address; raises DownloadError if that is not https."""
        target = urlsplit(urljoin(req.full_url, headers.get("Location", "")))
        if target.scheme != "https" or "@" in target.netloc:
            fp.close()
            url = req.full_url.partition("?")[0]
            raise DownloadError(f"{url}: refused a redirect to {target.scheme}, not https")
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _opener(hosts: ReleaseHosts) -> urllib.request.OpenerDirector:
    """Return what sends requests; it knows http and https only, and neither cookies nor passwords of hosts."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler({"https": hosts.proxy} if hosts.proxy else {}),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=hosts.trust or ssl.create_default_context()),
        urllib.request.HTTPDefaultErrorHandler(),
        _OnlySecure(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _request(url: str) -> urllib.request.Request:
    return urllib.request.Request(url, headers={"User-Agent": AGENT})  # noqa: S310  # mirror checks the scheme


@contextmanager
def _translated_errors(url: str, idle: float) -> Iterator[None]:
    """Turn the errors of a request for a file into a DownloadError."""
    try:
        yield
    except DownloadError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        _give_up(url, f"{error.code} {error.reason}", error)
    except (TimeoutError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        is_timeout = isinstance(reason, TimeoutError)
        _give_up(url, f"no data for {idle:g} s" if is_timeout else _error_text(reason), error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        _give_up(url, _error_text(error) or type(error).__name__, error)


def _give_up(url: str, reason: str, error: Exception) -> NoReturn:
    raise DownloadError(f"{url}: {' '.join(reason.split())}") from error


def _error_text(error: object) -> str:
    """Return the words of an error, for one of the system without its number."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _await_answers(urls: Iterable[str], hosts: ReleaseHosts) -> None:
    """Raise DownloadError if a host, or the proxy, does not accept a connection in time.

    The threads are left behind if they are late: nothing else ends the resolution of a name early.
    """
    outcomes: dict[tuple[str, int], str] = {}
    limit = hosts.limits.answer

    def call(peer: tuple[str, int]) -> None:
        try:
            socket.create_connection(peer, timeout=limit).close()
        except (OSError, ValueError) as error:
            outcomes[peer] = f"no answer within {limit:g} s" if isinstance(error, TimeoutError) else _error_text(error)
        else:
            outcomes[peer] = ""

    peers = sorted({_peer(url, hosts.proxy) for url in urls})
    calls = [threading.Thread(target=call, args=(peer,), daemon=True) for peer in peers]
    for thread in calls:
        thread.start()
    end = time.monotonic() + limit
    for thread in calls:
        thread.join(max(0.0, end - time.monotonic()))
    for peer in peers:
        reason = outcomes.get(peer, f"no answer within {limit:g} s")
        if reason:
            raise DownloadError(f"{peer[0]}: {reason}")


def _peer(url: str, proxy: str) -> tuple[str, int]:
    """Return the host and port that a request for a file connects to.

    Raises:
        DownloadError: the proxy is no address.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    default = 443 if parts.scheme == "https" else 80
    if not proxy or parts.scheme != "https" or urllib.request.proxy_bypass(host):
        return host, parts.port or default
    proxy_url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    try:
        port = proxy_url.port or default
    except ValueError:
        raise DownloadError("$HTTPS_PROXY is no address") from None  # the words of the error may be a password's
    return proxy_url.hostname or "", port


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yield the temporary name of a file, and delete the file at the end if it still has it."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _publish(partial: Path, program: Path) -> None:
    """Make a verified file executable, and give it its name."""
    partial.chmod(0o755)
    partial.rename(program)


def _unpack(archive: Path, file: ReleasedFile, target: Path, max_size: int) -> None:
    """Write the program in a verified archive to a file."""
    try:
        with tarfile.open(archive, "r:gz") as packed, target.open("xb") as sink:
            entry = packed.getmember(file.member)
            content = packed.extractfile(entry)
            if content is None or entry.size > max_size:
                raise DownloadError(f"{file.name}: {file.member} is no file of at most {max_size} bytes")
            shutil.copyfileobj(content, sink)
            _sync(sink)
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise DownloadError(f"{file.name}: it does not contain {file.member}") from error


def _sync(sink: BinaryIO) -> None:
    sink.flush()
    os.fsync(sink.fileno())
