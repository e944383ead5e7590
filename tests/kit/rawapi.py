"""A few lines of HTTP against a real apiserver, for tests that need to see its very answer."""

import base64
import http.client
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import yaml

Manifest = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"


class Refused(Exception):
    """An apiserver's refusal, with its status and message, so that a failing test says why."""


class Api:
    """One cluster, by the administrator's kubeconfig; every call raises `Refused` for a status of 300 or more."""

    def __init__(self, kubeconfig: Path, scratch: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = urlsplit(cluster["server"]).netloc
        pems = [user["client-certificate-data"], user["client-key-data"]]
        chain = scratch / f"{kubeconfig.stem}.pem"
        chain.write_bytes(b"\n".join(base64.b64decode(pem) for pem in pems))
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        self._tls.load_cert_chain(chain)

    def call(self, method: str, path: str, body: Manifest | None = None, media: str = "application/json") -> Manifest:
        """Make one request on a connection of its own."""
        link = self._link()
        try:
            link.request(method, path, None if body is None else orjson.dumps(body), {"Content-Type": media})
            answer = link.getresponse()
            told: Manifest = orjson.loads(answer.read())
        finally:
            link.close()
        if answer.status >= 300:
            raise Refused(f"{method} {path}: {answer.status} {told.get('message')}")
        return told

    def create(self, path: str, body: Manifest) -> Manifest:
        """Create an object in a collection."""
        return self.call("POST", path, body)

    def patch(self, path: str, body: Manifest) -> Manifest:
        """Send a strategic merge patch."""
        return self.call("PATCH", path, body, STRATEGIC)

    def read(self, path: str) -> Manifest:
        """Read an object or a list."""
        return self.call("GET", path)

    def until(self, path: str, holds: Callable[[Manifest], bool]) -> Manifest:
        """Watch an object until a condition holds; a minute is more than a loaded machine needs."""
        collection, name = path.rsplit("/", 1)
        link = self._link()
        try:
            link.request("GET", f"{collection}?watch=1&timeoutSeconds=60&fieldSelector=metadata.name%3D{name}")
            for line in link.getresponse():
                found: Manifest = orjson.loads(line)["object"]
                if holds(found):
                    return found
        finally:
            link.close()
        raise Refused(f"{path} did not come to what was waited for; see what it is now: {self.read(path)}")

    def _link(self) -> http.client.HTTPSConnection:
        """Open a connection."""
        return http.client.HTTPSConnection(self._address, context=self._tls, timeout=90)
