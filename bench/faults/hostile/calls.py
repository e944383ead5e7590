"""The answers of a hostile apiserver to reads, writes, requests for identity, version and discovery, and metrics."""

from collections.abc import Iterator
from typing import Any

from bench.faults.hostile.lists import MEBIBYTE, forbidding, misshapen
from bench.faults.hostile.objects import HUGE, fresh, invented
from bench.faults.hostile.pieces import CHUNKED, Piece, Play, Stall, chunk, endless, head, playing, whole
from bench.kit.faultproxy.asked import Asked

_ENDLESS = endless(head("200 OK", *CHUNKED), chunk(b" " * (1 << 18)))
_HUGE = playing(whole({"metadata": {"name": "x", "note": "x" * (20 * MEBIBYTE)}}))


def _another(asked: Asked) -> Iterator[Piece]:
    yield whole(invented(asked, fresh()), "201 Created" if asked.is_write else "200 OK")


def _misshapen(asked: Asked) -> Iterator[Piece]:
    yield whole(misshapen(invented(asked, 1)))


def _other_identity(_asked: Asked) -> Iterator[Piece]:
    meta = {"name": "kube-system", "uid": f"uid-{fresh()}", "resourceVersion": "3"}
    yield whole({"kind": "Namespace", "apiVersion": "v1", "metadata": meta})


def _identity(**fields: Any) -> Play:
    meta = {"name": "kube-system", "uid": "u", "resourceVersion": "3", **fields}
    return playing(whole({"kind": "Namespace", "apiVersion": "v1", "metadata": meta}))


def _groups(_asked: Asked) -> Iterator[Piece]:
    versions = [{"versions": [{"groupVersion": f"g{number}.io/v1"}]} for number in range(100_000)]
    yield whole({"kind": "APIGroupList", "groups": versions})


def _usage(_asked: Asked) -> Iterator[Piece]:
    item = (
        b'{"metadata":{"name":"p","namespace":"n"},"timestamp":"2026-01-01T00:00:00Z","window":"15s","containers":[]},'
    )
    yield head("200 OK", *CHUNKED) + chunk(b'{"items":[')
    while True:
        yield chunk(item * 2_000)


READS: dict[str, Play] = {
    "read-endless": _ENDLESS,
    "read-huge": _HUGE,
    "read-another": _another,
    "read-misshapen": _misshapen,
}
IDENTITIES: dict[str, Play] = {
    "identity-changes": _other_identity,
    "identity-huge": _identity(uid="u" * MEBIBYTE),
    "identity-empty": _identity(uid=""),
    "identity-endless": _ENDLESS,
    "identity-never": playing(Stall()),
    "identity-version": _identity(resourceVersion=HUGE),
}
VERSIONS: dict[str, Play] = {
    "version-huge": playing(whole({"gitVersion": "v" * MEBIBYTE})),
    "version-escapes": playing(whole({"gitVersion": "v1.36.3\x1b[2J\r\nv2"})),
    "version-endless": _ENDLESS,
}
DISCOVERIES: dict[str, Play] = {"discovery-many-groups": _groups, "discovery-endless": _ENDLESS}
WRITES: dict[str, Play] = {
    "write-endless": _ENDLESS,
    "write-huge": _HUGE,
    "write-another": _another,
    "write-misshapen": _misshapen,
    "write-never": playing(Stall()),
    "write-html": playing(whole(b"<html>", "200 OK", "Content-Type: text/html")),
    "write-redirect": playing(whole(b"", "307 Temporary Redirect", "Location: /elsewhere")),
    "write-forbidden-in-new-words": forbidding,
    "write-wait-a-century": playing(whole(b"{}", "429 Too Many Requests", f"Retry-After: {HUGE}")),
}
METRICS: dict[str, Play] = {
    "metrics-endless": _ENDLESS,
    "metrics-endless-items": _usage,
    "metrics-huge-amounts": playing(
        whole({"items": [{"timestamp": "2026-01-01T00:00:00Z", "window": "1s", "usage": {"cpu": "9" * 60}}]})
    ),
    "metrics-no-json": playing(whole(b"[[[")),
}
