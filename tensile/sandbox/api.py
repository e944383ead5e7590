"""Asks a cluster's servers, with the standard library alone.

The sandbox needs a handful of requests while it starts; a client library would cost more to import than they take.
"""

import http.client
import json
import socket
import ssl
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensile.sandbox.errors import SandboxError
from tensile.sandbox.layout import LOOPBACK, Layout

TIMEOUT = 5.0
NOT_ANSWERING = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Api:
    """One cluster's servers; `credential` names the certificate (in the cluster's folder) to show."""

    layout: Layout
    credential: str = "admin"

    def healthy(self, port: int, path: str) -> bool:
        """Tell whether the server at that port answers the path with 200."""
        try:
            return self._request(port, "GET", path)[0] == http.HTTPStatus.OK
        except NOT_ANSWERING:
            return False

    def get(self, path: str) -> dict[str, Any]:
        """Return the object or list at that path of the apiserver; empty when there is none or no answer."""
        try:
            status, content = self._request(self.layout.ports.apiserver, "GET", path)
        except NOT_ANSWERING:
            return {}
        return json.loads(content) if status == http.HTTPStatus.OK else {}

    def create(self, path: str, manifest: dict[str, Any]) -> None:
        """Create an object; one of that name that exists is taken as it is.

        Raises:
            SandboxError: the apiserver says no, or nothing.
        """
        port = self.layout.ports.apiserver
        what = f"{self.layout.name}: create {manifest['kind']} {manifest['metadata']['name']}"
        try:
            status, content = self._request(port, "POST", path, json.dumps(manifest))
        except NOT_ANSWERING as error:
            raise SandboxError(f"{what}: no answer ({error}); see {self.layout.output}") from error
        if status not in (http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT):
            raise SandboxError(f"{what}: {status}: {content.decode(errors='replace')}")

    def _request(self, port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        """Ask once, on a connection of its own; return the status and the body."""
        connection = _Connection(port, self._tls)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """What this side shows, and whom it believes."""
        context = ssl.create_default_context(cafile=str(self.layout.pki / "ca.crt"))
        stem = self.layout.pki / self.credential
        context.load_cert_chain(f"{stem}.crt", f"{stem}.key")
        return context


class _Connection(http.client.HTTPConnection):
    """One connection by TLS, whose socket can be closed at every moment.

    The standard library wraps a socket that is connected already, and loses it where the server is killed just then.
    """

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        super().__init__(LOOPBACK, port, timeout=TIMEOUT)
        self._tls = tls

    def connect(self) -> None:
        """Connect and shake hands."""
        self.sock = self._tls.wrap_socket(socket.socket(), server_hostname=self.host)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect((self.host, self.port))
