"""A collector of traces on loopback, and the requests that it received."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP receiver that records all requests, and the paths and headers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: dict[str, str] = {}
        self.paths: set[str] = set()


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Record a request."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Collector)
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.server.headers = dict(self.headers)
        self.server.paths.add(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a receiver on a free port."""
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def url(server: Collector) -> str:
    """Return the address of a receiver."""
    return f"http://127.0.0.1:{server.server_port}"


def received(server: Collector) -> list[Any]:
    """Return the spans that a receiver has received."""
    scopes = [scope for one in server.requests for resource in one.resource_spans for scope in resource.scope_spans]
    return [span for scope in scopes for span in scope.spans]
