"""Tests of downloads: released programs are complete and verified, or absent."""

import hashlib
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from certkit import CertificateSet
from releasekit import PROGRAM, ReleaseServer, archive, free_port, serving

from tensile.sandbox import binaries, download
from tensile.sandbox.binaries import Finder, ProgramSet
from tensile.sandbox.download import DownloadError, DownloadLimits, ReleasedFile, ReleaseHosts
from tensile.sandbox.state import SandboxError
from tensile.text import Updates

ONE = ReleasedFile("one", "v1", "https://host.example/v1/one", "https://host.example/v1/one.sha256")
PACKED = ReleasedFile(
    "two", "v2", "https://other.example/v2/two.tar.gz", "https://other.example/v2/SHA256SUMS", member="two-v2/two"
)
PATH = "/host.example/v1/one"
OTHER = "0" * 64


@pytest.fixture
def server() -> Iterator[ReleaseServer]:
    """A server that has both files."""
    with serving() as one:
        one.publish(ONE)
        one.publish(PACKED, archive(PACKED.member))
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder for programs."""
    (tmp_path / "programs").mkdir()
    return tmp_path / "programs"


def fetch(server: ReleaseServer, folder: Path, *files: ReleasedFile, **limits: float) -> None:
    """Download files from a server, one file by default."""
    hosts = ReleaseHosts(server.address, limits=replace(DownloadLimits(), **limits))
    download.download(files or (ONE,), folder, hosts, Updates(print))


def refused(server: ReleaseServer, folder: Path, *files: ReleasedFile, **limits: float) -> str:
    """Return the error of a failed download, after a check that none of its files is left."""
    with pytest.raises(DownloadError) as error:
        fetch(server, folder, *files, **limits)
    assert list(folder.iterdir()) == []
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_program_is_executable_and_has_its_own_name(server: ReleaseServer, folder: Path) -> None:
    """No other file is left in the folder, and the checksum is requested first."""
    fetch(server, folder)
    (path,) = folder.iterdir()
    assert path.name == "one"
    assert path.read_bytes() == PROGRAM
    assert os.access(path, os.X_OK)
    assert server.requests == [f"{PATH}.sha256", PATH]


def test_a_program_is_extracted_from_its_archive(server: ReleaseServer, folder: Path) -> None:
    """The archive is verified by the line with its name in the list of checksums, and is not kept."""
    sums = "/other.example/v2/SHA256SUMS"
    server.bodies[sums] = f"{OTHER}  two-windows.zip\n".encode() + server.bodies[sums]
    fetch(server, folder, ONE, PACKED)
    assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]
    assert (folder / "two").read_bytes() == PROGRAM
    assert os.access(folder / "two", os.X_OK)


def test_a_wrong_checksum_is_reported_with_both_digests(server: ReleaseServer, folder: Path) -> None:
    """The error names the file, which is deleted."""
    server.publish(ONE, checksum=OTHER)
    found = hashlib.sha256(PROGRAM).hexdigest()
    error = refused(server, folder)
    assert error.startswith(f"{server.address}{PATH}: wrong checksum, the file was deleted: ")
    assert f"expected sha256 {OTHER} (by {server.address}{PATH}.sha256), got {found}" in error


def test_a_known_checksum_is_not_requested(server: ReleaseServer, folder: Path) -> None:
    """A file whose checksum is part of this package is compared with that one."""
    known = replace(ONE, checksums="", digest=OTHER)
    assert f"expected sha256 {OTHER} (by tensile)" in refused(server, folder, known)
    assert server.requests == [PATH]


@pytest.mark.parametrize("text", ["", "<html>sign in</html>", "abc", f"{OTHER}  another"])
def test_checksums_without_the_file_are_refused(server: ReleaseServer, folder: Path, text: str) -> None:
    """A proxy's page is no checksum, and the file itself is not requested."""
    server.bodies[f"{PATH}.sha256"] = text.encode()
    assert refused(server, folder) == f"{server.address}{PATH}.sha256: it has no sha256 of one"
    assert PATH not in server.requests


def test_a_truncated_file_is_refused(server: ReleaseServer, folder: Path) -> None:
    """The error has the number of received bytes and the expected size."""
    server.cut.add(PATH)
    size = len(PROGRAM)
    assert refused(server, folder) == f"{server.address}{PATH}: the connection ended after {size - 10} of {size} bytes"


def test_a_truncated_file_without_a_size_is_refused(server: ReleaseServer, folder: Path) -> None:
    """Its checksum is wrong, which is the only way to notice it."""
    server.cut.add(PATH)
    server.unsized.add(PATH)
    assert "wrong checksum" in refused(server, folder)


def test_a_stalled_transfer_is_ended(server: ReleaseServer, folder: Path) -> None:
    """It ends after the idle limit, and its partial file is deleted."""
    server.silent.add(PATH)
    known = replace(ONE, checksums="", digest=OTHER)  # one request only, so that a slow machine gives the same answer
    assert refused(server, folder, known, idle=0.2) == f"{server.address}{PATH}: no data for 0.2 s"


def test_a_transfer_that_takes_too_long_is_ended(server: ReleaseServer, folder: Path) -> None:
    """All files of a set share one deadline."""
    ticks = count(0, 400)
    hosts = ReleaseHosts(server.address, clock=lambda: float(next(ticks)))
    with pytest.raises(DownloadError, match="too slow, not all files arrived within 600 s"):
        download.download((ONE,), folder, hosts, Updates(print))
    assert list(folder.iterdir()) == []


def test_a_missing_file_is_reported(server: ReleaseServer, folder: Path) -> None:
    """The error has its address; if a checksum is missing, no file is downloaded."""
    del server.bodies["/other.example/v2/SHA256SUMS"]
    assert refused(server, folder, ONE, PACKED).startswith(f"{server.address}/other.example/v2/SHA256SUMS: 404 ")
    assert PATH not in server.requests
    del server.bodies[PATH]
    assert refused(server, folder).startswith(f"{server.address}{PATH}: 404 ")


def test_a_host_that_refuses_connections_is_reported(folder: Path) -> None:
    """No server listens on the port."""
    hosts = ReleaseHosts(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(DownloadError, match=r"^127\.0\.0\.1: Connection refused$"):
        download.download((ONE,), folder, hosts, Updates(print))


def test_a_host_that_never_answers_is_reported_after_a_time_limit(folder: Path) -> None:
    """A full backlog drops connections, as a firewall does."""
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        first.connect(listener.getsockname())
        hosts = ReleaseHosts(
            f"http://127.0.0.1:{listener.getsockname()[1]}", limits=replace(DownloadLimits(), answer=0.2)
        )
        with pytest.raises(DownloadError, match=r"^127\.0\.0\.1: no answer within 0\.2 s$"):
            download.download((ONE,), folder, hosts, Updates(print))


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/one?token=secret", "file:///etc/passwd", "ftp://host/one"])
def test_a_redirect_to_another_scheme_than_https_is_refused(server: ReleaseServer, folder: Path, target: str) -> None:
    """This applies to a loopback server too; the target, which may contain a token, is not shown."""
    server.redirects[PATH] = target
    error = refused(server, folder)
    assert error == f"{server.address}{PATH}: refused a redirect to {target.partition(':')[0]}, not https"


def test_a_redirect_to_https_is_followed(server: ReleaseServer, folder: Path, tmp_path: Path) -> None:
    """The projects' hosts redirect to their storage, whose certificate is verified."""
    certificates = CertificateSet(tmp_path)
    with serving(certificates.server_context()) as store:
        store.bodies["/one"] = PROGRAM
        server.redirects[PATH] = f"{store.address}/one"
        assert "CERTIFICATE_VERIFY_FAILED" in refused(server, folder)
        trust = ssl.create_default_context(cadata=certificates.authority.pem.decode())
        hosts = ReleaseHosts(server.address, trust=trust)
        download.download((ONE,), folder, hosts, Updates(print))
    assert (folder / "one").read_bytes() == PROGRAM


def test_a_redirect_loop_is_refused(folder: Path, tmp_path: Path) -> None:
    """The error is one line, like every other reason."""
    certificates = CertificateSet(tmp_path)
    known = replace(ONE, checksums="", digest=OTHER)
    with serving(certificates.server_context()) as server:
        server.redirects[PATH] = f"{server.address}{PATH}"
        trust = ssl.create_default_context(cadata=certificates.authority.pem.decode())
        with pytest.raises(DownloadError, match=rf"^{server.address}{PATH}: 302 .* infinite loop") as error:
            download.download((known,), folder, ReleaseHosts(server.address, trust=trust), Updates(print))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("unsized", [True, False])
def test_a_file_that_is_too_large_is_refused(server: ReleaseServer, folder: Path, *, unsized: bool) -> None:
    """Its announced size exceeds the limit, or the transfer itself does."""
    server.publish(ONE, b"x" * 1001)
    if unsized:
        server.unsized.add(PATH)
    size = "" if unsized else "1001 bytes, "
    error = refused(server, folder, size=1000)
    assert error == f"{server.address}{PATH}: {size}more than the 1000 bytes that are allowed"


def test_a_program_that_is_too_large_in_its_archive_is_refused(server: ReleaseServer, folder: Path) -> None:
    """A small archive could fill the disk when it is unpacked."""
    server.publish(PACKED, archive(PACKED.member, bytes(100_000)))
    assert "two-v2/two is no file of at most 1000 bytes" in refused(server, folder, PACKED, size=1000)


@pytest.mark.parametrize("body", [archive("another"), b"no archive"])
def test_an_archive_without_the_program_is_refused(server: ReleaseServer, folder: Path, body: bytes) -> None:
    """It is refused although its checksum is correct."""
    server.publish(PACKED, body)
    assert refused(server, folder, PACKED) == "two.tar.gz: it does not contain two-v2/two"


def test_no_credentials_are_sent(server: ReleaseServer, folder: Path) -> None:
    """Requests have no headers other than these."""
    fetch(server, folder)
    assert {name for name, _ in server.headers} == {"host", "user-agent", "accept-encoding", "connection"}


def test_https_requests_use_the_proxy(server: ReleaseServer, folder: Path) -> None:
    """The proxy resolves the host names and its refusal is reported without its password."""
    hosts = ReleaseHosts("https://mirror.example", proxy=f"http://me:pass@127.0.0.1:{server.port}")
    with pytest.raises(DownloadError, match=r"^https://mirror\.example/.*: Tunnel connection failed: 403") as error:
        download.download((ONE,), folder, hosts, Updates(print))
    assert server.requests == ["mirror.example:443"]
    assert "pass" not in str(error.value)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy"])
def test_the_proxy_is_read_from_the_users_environment(name: str) -> None:
    """It is in the variables that other programs read too."""
    hosts = download.release_hosts({name: "http://proxy.example:3128"})
    assert hosts is not None
    assert hosts.proxy == "http://proxy.example:3128"


def test_an_invalid_proxy_address_is_reported_without_its_password(folder: Path) -> None:
    """A slash in the password makes the address invalid."""
    hosts = ReleaseHosts(proxy="http://me:se/cret@proxy.example")
    with pytest.raises(DownloadError, match=r"^\$HTTPS_PROXY is no address$"):
        download.download((ONE,), folder, hosts, Updates(print))


@pytest.mark.parametrize(
    "address",
    [
        "http://mirror.example",
        "ftp://mirror.example",
        "mirror.example",
        "https://",
        "https://me:secret@mirror.example",
        "https://mirror.example/?key=secret",
        "https://mirror.example:port",
        "file:///srv",
    ],
)
def test_a_mirror_that_is_not_secure_is_refused(address: str) -> None:
    """The error describes a valid address, and does not repeat the given one."""
    with pytest.raises(SandboxError, match=r"^\$TENSILE_RELEASES: give the https address of a mirror") as error:
        download.mirror({download.VARIABLE: address})
    assert "secret" not in str(error.value)


def test_a_mirror_has_a_folder_for_each_host() -> None:
    """`wget --mirror` has the same layout; without a mirror the host is used, and `off` disables downloads."""
    address = download.mirror({download.VARIABLE: "https://mirror.example/k8s/"})
    assert address == "https://mirror.example/k8s"
    assert download.mirrored(ONE.url, address) == "https://mirror.example/k8s/host.example/v1/one"
    assert download.mirror({}) == ""
    assert download.mirrored(ONE.url, "") == ONE.url
    assert download.mirror({download.VARIABLE: "off"}) is None


@pytest.mark.parametrize("architecture", download.ARCHITECTURES.values())
def test_every_released_set_is_complete(architecture: str) -> None:
    """The files are exactly the programs of the set, each with a checksum, in the versions that would be built."""
    for one in (binaries.CONTROL_PLANE, binaries.KWOK, binaries.KUBELET):
        assert one.released is not None
        files = one.released(one.version, architecture)
        assert sorted(file.program for file in files) == sorted(one.programs)
        assert all(bool(file.checksums) != bool(file.digest) for file in files)
        assert all(architecture in file.url and file.version in file.url for file in files)
    required = (binaries.SOURCES / "kubernetes" / "go.mod").read_text()
    assert f"go.etcd.io/etcd/server/v3 {download.ETCD}\n" in required


def test_addresses_of_released_files_are_those_that_the_projects_document() -> None:
    """The addresses of kubectl, etcd and kwok are checked."""
    servers = download.control_plane("v1.36.3", "amd64")
    by_program = {file.program: file for file in servers}
    kubectl, etcd = by_program["kubectl"], by_program["etcd"]
    assert kubectl.url == "https://dl.k8s.io/release/v1.36.3/bin/linux/amd64/kubectl"
    assert kubectl.checksums == f"{kubectl.url}.sha256"
    release = "https://github.com/etcd-io/etcd/releases/download/v3.6.8"
    assert etcd.url == f"{release}/etcd-v3.6.8-linux-amd64.tar.gz"
    assert etcd.checksums == f"{release}/SHA256SUMS"
    assert etcd.member == "etcd-v3.6.8-linux-amd64/etcd"
    (kwok,) = download.kwok("v0.8.0", "arm64")
    assert kwok.url == "https://github.com/kubernetes-sigs/kwok/releases/download/v0.8.0/kwok-linux-arm64"
    assert download.kwok("v0.9.0", "arm64") == ()


@pytest.mark.parametrize(
    ("size", "total", "seconds", "text"),
    [
        (43_000_000, 126_000_000, 6.0, "43 of 126 MB, 12 s left"),
        (43_000_000, 0, 6.0, "43 MB"),
        (0, 126_000_000, 6.0, "0 of 126 MB"),
        (126_000_000, 126_000_000, 6.0, "126 of 126 MB, 0 s left"),
        (43_000_000, 126_000_000, 0.0, "43 of 126 MB"),
    ],
)
def test_progress_has_the_size_and_the_remaining_time(size: int, total: int, seconds: float, text: str) -> None:
    """It has the received and the total size; the total and the remaining time are omitted if unknown."""
    assert download.amount(size, total, seconds) == text


def pair(version: str, _architecture: str) -> tuple[ReleasedFile, ...]:
    """Return the files of a set of two programs."""
    return replace(ONE, version=version), PACKED


SET = ProgramSet("pair", "v1", ("one", "two"), ".", "-s -w", "no time at all", pair)


def finder(tmp_path: Path, address: str, messages: list[str]) -> Finder:
    """Return a finder with a mirror, an empty cache, and sources of a program."""
    source = tmp_path / "sources" / "pair"
    source.mkdir(parents=True, exist_ok=True)
    (source / "go.mod").write_text("module pair\n\ngo 1.21\n")
    (source / "main.go").write_text('package main\n\nfunc main() { println("built") }\n')
    environ = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache"), download.VARIABLE: address}
    return Finder(environ, messages.append, sources=source.parent)


def test_a_set_is_downloaded_once(server: ReleaseServer, tmp_path: Path) -> None:
    """The second search finds it without a request, and the cache has no other files but the lock."""
    messages: list[str] = []
    folder = finder(tmp_path, server.address, messages).find(SET)
    request_count = len(server.requests)
    assert finder(tmp_path, server.address, messages).find(SET) == folder
    assert len(server.requests) == request_count
    assert folder.name.startswith("pair-v1-released-")
    assert messages[0] == f"downloading pair v1 (once) into {folder}"
    assert [line.partition(" in ")[0] for line in messages[1:]] == ["done"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["lock", folder.name]


@pytest.mark.parametrize("broken", ["wrong", "missing", "refused", "does not run"])
def test_a_set_that_cannot_be_downloaded_is_built(server: ReleaseServer, tmp_path: Path, broken: str) -> None:
    """A message has the reason, and no file of the download is left."""
    address = server.address
    if broken == "wrong":
        server.publish(ONE, checksum=OTHER)
    elif broken == "missing":
        del server.bodies[PATH]
    elif broken == "refused":
        address = f"http://127.0.0.1:{free_port()}"
    else:
        server.publish(ONE, b"\x7fELF but not for this machine")
    messages: list[str] = []
    folder = finder(tmp_path, address, messages).find(SET)
    assert not folder.name.startswith("pair-v1-released-")
    assert sorted(path.name for path in folder.iterdir()) == ["one", "two"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["lock", folder.name]
    reasons = {
        "wrong": "wrong checksum",
        "missing": "404",
        "refused": "Connection refused",
        "does not run": "the released one v1 does not run on this machine",
    }
    assert reasons[broken] in messages[1]
    assert messages[1].endswith(": pair is built instead")
    assert messages[2].startswith("building pair v1 (once, no time at all) into ")


def test_downloads_can_be_disabled(server: ReleaseServer, tmp_path: Path) -> None:
    """The set is then built, without a request and without a message about downloads."""
    messages: list[str] = []
    folder = finder(tmp_path, "off", messages).find(SET)
    assert server.requests == []
    assert messages[0].startswith("building pair v1")
    assert not folder.name.startswith("pair-v1-released-")


def test_another_release_is_a_separate_download() -> None:
    """Its version is in the name of its folder and in the addresses of its files."""
    other = binaries.of_version(binaries.CONTROL_PLANE, {binaries.VERSION_VARIABLE: "v1.35.4"})
    (_, pinned), (_, named) = (binaries.cache_names(one) for one in (binaries.CONTROL_PLANE, other))
    assert named.startswith("kubernetes-v1.35.4-released-")
    assert pinned.startswith("kubernetes-v1.36.3-released-")
    assert {file.version for file in binaries.released_files(other)} == {"v1.35.4", download.ETCD}
