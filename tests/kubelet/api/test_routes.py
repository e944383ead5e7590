"""Tests of the parsing of request paths and of the rights that they require, as tables."""

from string import printable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.api import routes
from tensile.kubelet.api.routes import ContainerRef, HTTPError, RequiredAccess, accesses, container_ref, parse_call

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "HEAD": ""}
SUBRESOURCES = {
    "/stats/summary": ["stats"],
    "/metrics": ["metrics"],
    "/metrics/resource": ["metrics"],
    "/metrics/cadvisor": ["metrics"],
    "/metrics/probes": ["metrics"],
    "/metrics/slis": ["metrics"],
    "/logs/": ["log"],
    "/logs/syslog": ["log"],
    "/checkpoint/a/b/c": ["checkpoint"],
    "/statusz": ["statusz"],
    "/flagz": ["configz"],
    "/pods": ["pods", "proxy"],
    "/runningpods/": ["pods", "proxy"],
    "/healthz": ["healthz", "proxy"],
    "/healthz/log": ["healthz", "proxy"],
    "/configz": ["configz", "proxy"],
    "/containerLogs/a/b/c": ["proxy"],
    "/debug/pprof/": ["proxy"],
    "/": ["proxy"],
    "/podsecurity": ["proxy"],
    "/unknown": ["proxy"],
}


@pytest.mark.parametrize("method", VERBS)
@pytest.mark.parametrize("path", SUBRESOURCES)
def test_routes_require_the_kubelets_rights(method: str, path: str) -> None:
    """Each route requires the verb of its method on the kubelet's subresources, in the same order."""
    expected = tuple(RequiredAccess(VERBS[method], each) for each in SUBRESOURCES[path])
    assert accesses(parse_call(method, path)) == expected


@pytest.mark.parametrize("method", VERBS)
@pytest.mark.parametrize("area", ["exec", "attach", "portForward", "run"])
def test_running_commands_always_requires_create(method: str, area: str) -> None:
    """exec, attach, run and portForward require `create` on proxy, whatever the HTTP method."""
    assert accesses(parse_call(method, f"/{area}/ns/pod/c")) == (RequiredAccess("create", "proxy"),)


@pytest.mark.parametrize("path", routes.ROUTES)
def test_every_served_route_has_tested_rights(path: str) -> None:
    """A route whose rights this file does not contain must not be served."""
    stated = {each.split("/")[1] for each in SUBRESOURCES} | {"exec", "attach", "portForward"}
    assert path in stated


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/containerLogs/shop/web/main", ContainerRef("shop", "web", "main")),
        ("GET", "/exec/shop/web.v1/main", ContainerRef("shop", "web.v1", "main")),
        ("POST", "/exec/shop/web/main/", ContainerRef("shop", "web", "main")),
        ("POST", "/attach/s/w/m", ContainerRef("s", "w", "m")),
        ("POST", "/portForward/shop/web", ContainerRef("shop", "web")),
        ("GET", "/portForward/shop/web", ContainerRef("shop", "web")),
        ("GET", "/healthz", ContainerRef()),
        ("GET", "/pods", ContainerRef()),
        ("GET", "/pods/", ContainerRef()),
        ("GET", "/runningpods/", ContainerRef()),
        ("GET", "/metrics", ContainerRef()),
        ("GET", "/metrics/resource", ContainerRef()),
        ("GET", "/metrics/cadvisor", ContainerRef()),
        ("GET", "/metrics/probes", ContainerRef()),
        ("GET", "/metrics/slis", ContainerRef()),
        ("GET", "/stats/summary", ContainerRef()),
        ("GET", "/stats/summary/", ContainerRef()),
        ("GET", "/containerLogs/shop/w%65b/main", ContainerRef("shop", "web", "main")),
    ],
)
def test_a_route_names_its_namespace_pod_and_container(method: str, path: str, expected: ContainerRef) -> None:
    """The names are the segments of the path, decoded once."""
    assert container_ref(parse_call(method, path)) == expected


BAD_PATHS = [
    "",
    "/",
    "//",
    "*",
    "exec/shop/web/main",
    "https://node/exec/shop/web/main",
    "/exec",
    "/exec/shop/web",
    "/exec/shop/web/main/more",
    "/exec//web/main",
    "//exec/shop/web/main",
    "/exec/shop/web//",
    "/exec/shop/../main",
    "/exec/./web/main",
    "/exec/shop/%2e%2e/main",
    "/exec/shop/web%2fmain/main",
    "/exec/shop/web%252fmain/main",
    "/exec%2fshop/web/main",
    "/exec/shop/web%00/main",
    "/exec/shop/web%0a/main",
    "/exec/shop/web%0d%0aHost:x/main",
    "/exec/shop/Web/main",
    "/exec/shop/web_1/main",
    "/exec/-shop/web/main",
    "/exec/shop-/web/main",
    "/exec/shop.x/web/main",
    "/exec/shop/web/main.x",
    "/exec/" + "s" * 64 + "/web/main",
    "/exec/shop/" + "w" * 254 + "/main",
    "/exec/shop/web/" + "m" * 64,
    "/exec/shop/w%C3%A9b/main",
    "/exec/shop/w%FFb/main",
    "/EXEC/shop/web/main",
    "/run/shop/web/main",
    "/logs/syslog",
    "/portForward/shop/web/main",
    "/pods/web",
    "/healthz/ping",
    "/%70ods%2f",
    "/stats",
    "/stats/summary/web",
    "/stats/resource",
    "/metrics/summary",
    "/metrics/cadvisor/machine",
    "/metrics/resource/v1alpha1",
    "/metrics%2fresource",
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_invalid_paths_get_404(path: str) -> None:
    """A path that is no route, or contains an invalid Kubernetes name, is 404."""
    with pytest.raises(HTTPError) as refused:
        container_ref(parse_call("GET", path))
    assert refused.value.status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/containerLogs/shop/web/main"),
        ("HEAD", "/containerLogs/shop/web/main"),
        ("PUT", "/exec/shop/web/main"),
        ("DELETE", "/exec/shop/web/main"),
        ("PATCH", "/attach/shop/web/main"),
        ("DELETE", "/portForward/shop/web"),
        ("POST", "/healthz"),
        ("POST", "/pods"),
        ("DELETE", "/runningpods/"),
        ("POST", "/stats/summary"),
        ("HEAD", "/metrics/resource"),
        ("get", "/pods"),
    ],
)
def test_unsupported_methods_get_405(method: str, path: str) -> None:
    """The message names the methods that the route supports."""
    with pytest.raises(HTTPError) as refused:
        container_ref(parse_call(method, path))
    assert refused.value.status == 405
    assert "GET" in str(refused.value)


@given(st.text(printable + "\x00\x7fäß", max_size=60), st.sampled_from(sorted(VERBS)))
def test_any_path_is_parsed_without_an_unexpected_error(path: str, method: str) -> None:
    """Every target has rights, and either yields valid names or is rejected."""
    call = parse_call(method, path)
    assert accesses(call)
    try:
        found = container_ref(call)
    except HTTPError:
        return
    assert all(set(part) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for part in found)


def test_the_query_keeps_its_order_and_bytes() -> None:
    """Query values may repeat, may be empty, and may contain bytes that are not UTF-8."""
    call = parse_call("GET", "/exec/a/b/c?command=sh&command=&command=%FFx&input=1")
    assert call.query == (("command", "sh"), ("command", ""), ("command", "\udcffx"), ("input", "1"))
