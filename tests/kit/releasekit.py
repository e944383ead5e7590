"""A server on loopback that simulates the hosts of releases, for tests of downloads."""

import hashlib
import io
import socket
import ssl
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tensile.sandbox.download import ReleasedFile

PROGRAM = b"#!/bin/sh\nexit 0\n"
SHORTER = 10
"""The number of bytes that a cut answer lacks."""


class ReleaseServer:
    """The files of the server and how it behaves.

    `bodies` are the files by path, and `redirects` the new address of a path. `cut` are paths whose answer ends early,
    `silent` those whose answer stalls after the first bytes, and `unsized` those whose answer has no Content-Length.
    `requests` are the requested paths in order (of a CONNECT the target), and `headers` the names, in lower case,
    and values of the headers of all requests.
    """

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.cut: set[str] = set()
        self.silent: set[str] = set()
        self.unsized: set[str] = set()
        self.requests: list[str] = []
        self.headers: list[tuple[str, str]] = []
        self.address = ""
        self.port = 0
        self.ended = threading.Event()

    def add(self, url: str, body: bytes) -> None:
        """Add a file at the path that a mirror has for it."""
        self.bodies["/" + url.removeprefix("https://")] = body

    def publish(self, file: ReleasedFile, body: bytes = PROGRAM, checksum: str = "") -> None:
        """Add a file and its checksums; `checksum` is a digest to publish instead of the right one."""
        self.add(file.url, body)
        digest = checksum or hashlib.sha256(body).hexdigest()
        name = file.checksums.rpartition("/")[2]
        if file.checksums:
            self.add(file.checksums, (digest if name.endswith(".sha256") else f"{digest}  {file.name}\n").encode())


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[ReleaseServer]:
    """Yield a server that runs until the end of the block."""
    releases = ReleaseServer()
    server = _Server(("127.0.0.1", 0), _Handler)
    server.releases = releases
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    releases.port = server.server_address[1]
    releases.address = f"{'https' if tls else 'http'}://127.0.0.1:{releases.port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield releases
    finally:
        releases.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def archive(member: str, body: bytes = PROGRAM) -> bytes:
    """Return a tar.gz with one file."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as tar:
        entry = tarfile.TarInfo(member)
        entry.size = len(body)
        tar.addfile(entry, io.BytesIO(body))
    return sink.getvalue()


class _Handler(BaseHTTPRequestHandler):
    """A handler that answers as its server's releases define."""

    server: "_Server"

    def do_GET(self) -> None:
        """Answer with a file, a redirect, or 404."""
        releases = self._record_request()
        if target := releases.redirects.get(self.path):
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()
        elif self.path in releases.bodies:
            self._answer(releases, releases.bodies[self.path])
        else:
            self.send_error(404)

    def do_CONNECT(self) -> None:
        """Refuse to be a proxy."""
        self._record_request()
        self.send_error(403)

    def _record_request(self) -> ReleaseServer:
        releases = self.server.releases
        releases.requests.append(self.path)
        releases.headers += [(name.lower(), value) for name, value in self.headers.items()]
        return releases

    def _answer(self, releases: ReleaseServer, body: bytes) -> None:
        self.send_response(200)
        if self.path not in releases.unsized:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path in releases.silent:
            self.wfile.write(body[:SHORTER])
            self.wfile.flush()
            releases.ended.wait(60)
        else:
            self.wfile.write(body[:-SHORTER] if self.path in releases.cut else body)

    def log_message(self, *_: object) -> None:
        """Write no log."""


class _Server(ThreadingHTTPServer):
    """A server with its releases; connections that a client ends early are not reported."""

    releases: ReleaseServer

    def handle_error(self, *_: object) -> None:
        """Print nothing."""
