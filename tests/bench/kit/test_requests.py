"""Tests of how a fault proxy reads from a request what an audit log would contain, and its preconditions.

No audit log contains the preconditions.
"""

from typing import Any

import orjson
import pytest

from bench.kit.faultproxy.faults import Passed, Refused, status
from bench.kit.faultproxy.journal import Journal
from bench.kit.faultproxy.requests import parse_path, parse_request

POD = "/api/v1/namespaces/shop/pods/web"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", ("pods", "", "", "")),
        ("/api/v1/namespaces/shop/pods", ("pods", "", "shop", "")),
        (POD, ("pods", "", "shop", "web")),
        (f"{POD}/status", ("pods", "status", "shop", "web")),
        (f"{POD}/proxy/a/b", ("pods", "proxy/a/b", "shop", "web")),
        ("/api/v1/nodes/n1/status", ("nodes", "status", "", "n1")),
        ("/api/v1/namespaces", ("namespaces", "", "", "")),
        ("/api/v1/namespaces/shop", ("namespaces", "", "shop", "shop")),
        ("/api/v1/namespaces/shop/status", ("namespaces", "status", "shop", "shop")),
        ("/apis/apps/v1/namespaces/shop/deployments/d/scale", ("deployments", "scale", "shop", "d")),
        ("/apis/storage.k8s.io/v1/storageclasses/fast", ("storageclasses", "", "", "fast")),
        ("/api/v1/namespaces/shop/configmaps/a%20b", ("configmaps", "", "shop", "a b")),
        ("/version", ("", "", "", "")),
        ("/apis/apps/v1", ("", "", "", "")),
    ],
)
def test_a_path_determines_resource_subresource_namespace_and_name(
    path: str, expected: tuple[str, str, str, str]
) -> None:
    """They are the same as in audit logs."""
    assert parse_path(path) == expected


@pytest.mark.parametrize(
    ("method", "target", "verb"),
    [
        ("GET", POD, "get"),
        ("GET", "/api/v1/pods?limit=5", "list"),
        ("GET", "/api/v1/pods?watch=1&timeoutSeconds=5", "watch"),
        ("GET", "/api/v1/pods?watch=true", "watch"),
        ("GET", "/api/v1/pods?watch=0", "list"),
        ("POST", "/api/v1/pods", "create"),
        ("PUT", POD, "update"),
        ("PATCH", POD, "patch"),
        ("DELETE", POD, "delete"),
        ("DELETE", "/api/v1/namespaces/shop/pods", "deletecollection"),
    ],
)
def test_a_method_becomes_the_verb_of_audit_logs(method: str, target: str, verb: str) -> None:
    """The verb separates reads from writes."""
    found = parse_request("upper", method, target, b"")
    assert found.verb == verb
    assert found.is_write == (method != "GET")


@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("DELETE", {"preconditions": {"uid": "u", "resourceVersion": "7"}}, ("u", "7")),
        ("DELETE", {"gracePeriodSeconds": 0}, ("", "")),
        ("DELETE", None, ("", "")),
        ("PATCH", {"metadata": {"uid": "u"}, "data": {}}, ("u", "")),
        ("PATCH", {"metadata": {"resourceVersion": "7"}}, ("", "7")),
        ("PATCH", {"metadata": None}, ("", "")),
        ("PATCH", [{"op": "replace", "path": "/metadata/uid", "value": "u"}], ("u", "")),
        ("PATCH", [{"op": "test", "path": "/metadata/resourceVersion", "value": "7"}], ("", "7")),
        ("PATCH", [{"op": "remove", "path": "/metadata/uid"}], ("", "")),
        ("PATCH", [{"op": "add", "path": "/data/k", "value": "u"}, "no operation"], ("", "")),
        ("PUT", {"metadata": {"uid": "u", "resourceVersion": "7"}}, ("u", "7")),
        ("POST", {"metadata": {"uid": "u"}, "deleteOptions": {"preconditions": {"uid": "v"}}}, ("v", "")),
        ("POST", {"metadata": {"uid": "u"}}, ("", "")),
    ],
)
def test_preconditions_are_read_from_every_kind_of_body(method: str, body: Any, expected: tuple[str, str]) -> None:
    """These are delete options, evictions, objects, merge patches and JSON patches; other bodies have none."""
    found = parse_request("upper", method, POD, b"" if body is None else orjson.dumps(body))
    assert (found.uid, found.version) == expected


def test_a_body_that_is_no_json_has_no_preconditions() -> None:
    """The apiserver is the one that refuses it."""
    assert parse_request("upper", "PATCH", POD, b"{").uid == ""


def test_the_name_of_a_new_object_is_read_from_its_body() -> None:
    """The path of a create does not contain the name, unless it creates a subresource."""
    body = orjson.dumps({"metadata": {"name": "web"}})
    assert parse_request("upper", "POST", "/api/v1/namespaces/shop/pods", body).name == "web"
    space = parse_request("upper", "POST", "/api/v1/namespaces", body)
    assert (space.name, space.namespace) == ("web", "web")
    assert parse_request("upper", "POST", f"{POD}/eviction", orjson.dumps({"metadata": {"name": "x"}})).name == "web"
    assert parse_request("upper", "POST", "/api/v1/namespaces/shop/pods", b"[]").name == ""


def test_a_request_is_readable_as_text() -> None:
    """The text has cluster, verb, resource and name."""
    assert str(parse_request("lower-a", "PATCH", f"{POD}/status", b"{}")) == "lower-a: patch pods/status shop/web"


def test_a_write_has_the_form_of_an_audit_record() -> None:
    """Therefore the oracles for audit logs can check it too."""
    journal = Journal()
    found = parse_request("upper", "PATCH", f"{POD}/status", b"{}", user="me", agent="tensile/1")
    written = journal.add(found, Passed(), 1.0)
    assert not written.is_done
    written.status = 200
    assert written.is_done
    assert written.record() == {
        "verb": "patch",
        "user": {"username": "me"},
        "userAgent": "tensile/1",
        "objectRef": {"resource": "pods", "subresource": "status", "namespace": "shop", "name": "web"},
        "responseStatus": {"code": 200},
    }
    assert (
        "subresource"
        not in journal.add(parse_request("upper", "DELETE", POD, b""), Passed(), 2.0).record()["objectRef"]
    )
    assert (len(journal), [one.at for one in journal.since(1)]) == (2, [2.0])


def test_a_refusal_has_the_form_of_a_kubernetes_status() -> None:
    """It has code and reason, and causes if there are any."""
    told = orjson.loads(Refused(403, causes=("NamespaceTerminating",)).body())
    assert (told["kind"], told["code"], told["reason"]) == ("Status", 403, "Forbidden")
    assert told["details"] == {"causes": [{"reason": "NamespaceTerminating"}]}
    assert "details" not in status(500, "broken")
