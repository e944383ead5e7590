"""The released programs that a sandbox can use, and where their projects publish them.

Kubernetes publishes each program as a file, next to its SHA-256. etcd publishes an archive, and the SHA-256 of all
archives of a release in one file. kwok publishes no checksums, so those of the version in use are kept here.

$TENSILE_RELEASES names a mirror: an https address with the same files, in a folder for each host, as `wget --mirror`
stores them. `off` disables downloads.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from tensile.sandbox.layout import SandboxError

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
    alone = len(rows) == 1 and len(rows[0]) == 1
    found = [row[0].lower() for row in rows if alone or (len(row) > 1 and row[1].lstrip("*") == name)]
    return found[0] if found and _DIGEST.fullmatch(found[0]) else ""


def mirror(environ: Mapping[str, str]) -> str | None:
    """Return the address that $TENSILE_RELEASES names, "" for the projects' own hosts, None if downloads are off.

    Raises:
        SandboxError: this is no address that programs may come from.
    """
    given = environ.get(VARIABLE, "").strip()
    if given == OFF:
        return None
    if given and not _is_mirror(given):
        raise SandboxError(
            f"${VARIABLE}: give the https address of a mirror, without user, password and query, or `{OFF}` to build"
        )
    return given.rstrip("/")


def mirrored(url: str, address: str) -> str:
    """Return the address of a file at a mirror, its own address if that is ""."""
    return f"{address}/{url.removeprefix('https://')}" if address else url


def _is_mirror(given: str) -> bool:
    """Report whether an address is https, or http on loopback, and has nothing secret in it."""
    try:
        parts = urlsplit(given)
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
