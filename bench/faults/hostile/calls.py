"""The answers of a hostile apiserver to reads, writes, requests for identity, version and discovery, and metrics."""

from collections.abc import Iterator
from typing import Any

from bench.faults.hostile.answer_parts import (
    CHUNKED,
    Answer,
    AnswerPart,
    Stall,
    answer_with,
    chunk,
    endless,
    head,
    whole,
)
from bench.faults.hostile.lists import MEBIBYTE, forbidding, misshapen
from bench.faults.hostile.objects import HUGE, fresh, invented
from bench.kit.faultproxy.requests import ProxiedRequest

_ENDLESS = endless(head("200 OK", *CHUNKED), chunk(b" " * (1 << 18)))
_HUGE = answer_with(whole({"metadata": {"name": "x", "note": "x" * (20 * MEBIBYTE)}}))


def _another(request: ProxiedRequest) -> Iterator[AnswerPart]:
    yield whole(invented(request, fresh()), "201 Created" if request.is_write else "200 OK")


def _misshapen(request: ProxiedRequest) -> Iterator[AnswerPart]:
    yield whole(misshapen(invented(request, 1)))


def _other_identity(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    meta = {"name": "kube-system", "uid": f"uid-{fresh()}", "resourceVersion": "3"}
    yield whole({"kind": "Namespace", "apiVersion": "v1", "metadata": meta})


def _identity(**fields: Any) -> Answer:
    meta = {"name": "kube-system", "uid": "u", "resourceVersion": "3", **fields}
    return answer_with(whole({"kind": "Namespace", "apiVersion": "v1", "metadata": meta}))


def _groups(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    versions = [{"versions": [{"groupVersion": f"g{number}.io/v1"}]} for number in range(100_000)]
    yield whole({"kind": "APIGroupList", "groups": versions})


def _usage(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    item = (
        b'{"metadata":{"name":"p","namespace":"n"},"timestamp":"2026-01-01T00:00:00Z","window":"15s","containers":[]},'
    )
    yield head("200 OK", *CHUNKED) + chunk(b'{"items":[')
    while True:
        yield chunk(item * 2_000)


READS: dict[str, Answer] = {
    "read-endless": _ENDLESS,
    "read-huge": _HUGE,
    "read-another": _another,
    "read-misshapen": _misshapen,
}
IDENTITIES: dict[str, Answer] = {
    "identity-changes": _other_identity,
    "identity-huge": _identity(uid="u" * MEBIBYTE),
    "identity-empty": _identity(uid=""),
    "identity-endless": _ENDLESS,
    "identity-never": answer_with(Stall()),
    "identity-version": _identity(resourceVersion=HUGE),
}
VERSIONS: dict[str, Answer] = {
    "version-huge": answer_with(whole({"gitVersion": "v" * MEBIBYTE})),
    "version-escapes": answer_with(whole({"gitVersion": "v1.36.3\x1b[2J\r\nv2"})),
    "version-endless": _ENDLESS,
}
DISCOVERIES: dict[str, Answer] = {"discovery-many-groups": _groups, "discovery-endless": _ENDLESS}
WRITES: dict[str, Answer] = {
    "write-endless": _ENDLESS,
    "write-huge": _HUGE,
    "write-another": _another,
    "write-misshapen": _misshapen,
    "write-never": answer_with(Stall()),
    "write-html": answer_with(whole(b"<html>", "200 OK", "Content-Type: text/html")),
    "write-redirect": answer_with(whole(b"", "307 Temporary Redirect", "Location: /elsewhere")),
    "write-forbidden-in-new-words": forbidding,
    "write-wait-a-century": answer_with(whole(b"{}", "429 Too Many Requests", f"Retry-After: {HUGE}")),
}
METRICS: dict[str, Answer] = {
    "metrics-endless": _ENDLESS,
    "metrics-endless-items": _usage,
    "metrics-huge-amounts": answer_with(
        whole({"items": [{"timestamp": "2026-01-01T00:00:00Z", "window": "1s", "usage": {"cpu": "9" * 60}}]})
    ),
    "metrics-no-json": answer_with(whole(b"[[[")),
}
