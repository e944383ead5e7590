"""Tests of the client against a scripted apiserver: its requests, how it reads responses, and what it never does."""

import asyncio
from collections.abc import Mapping

import orjson
import pytest
from scripted import (
    WAIT,
    DropConnection,
    Hang,
    HttpResponse,
    ScriptedApiserver,
    access_to,
    answer,
    listing,
    make_pod,
    refusal,
)

from tensile import __version__
from tensile.errors import (
    Conflict,
    Denied,
    Expired,
    Throttled,
    Unreachable,
)
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Patch, Selection
from tensile.kube.measures import RequestMetrics
from tensile.objects import CONFIG_MAP, NODE, POD, SERVICE_ACCOUNT, TOKEN_REVIEW, Kind, Ref

REF = Ref("a", POD, "default", "web")
WRITTEN = {"fieldManager": "tensile-kube", "fieldValidation": "Ignore"}


async def test_a_read_is_a_quorum_get_and_returns_the_raw_response(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """A GET without a resourceVersion is a quorum read in Kubernetes, and its raw response is returned."""
    raw = orjson.dumps(make_pod("web", 12, extra=[1, {}]))
    apiserver.queue("list", HttpResponse(body=raw))
    assert await cluster.read(REF) == raw
    request = apiserver.requests[-1]
    assert (request.method, request.path, request.query) == ("GET", "/api/v1/namespaces/default/pods/web", {})
    assert request.headers["user-agent"] == f"tensile/{__version__}"
    assert request.headers["accept"] == "application/json"


async def test_a_create_posts_the_object_to_its_collection(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """The request has the manifest as JSON and our field manager, and `create` returns the stored object.

    Reviews are created in the same way, although the apiserver does not store them and they have no name.
    """
    stored = orjson.dumps(make_pod("web", 12))
    apiserver.queue("write", HttpResponse(201, stored))
    assert await cluster.create(REF, {"metadata": {"name": "web"}}) == stored
    request = apiserver.requests[-1]
    assert (request.method, request.path, request.query) == ("POST", "/api/v1/namespaces/default/pods", WRITTEN)
    assert request.headers["content-type"] == "application/json"
    assert request.json() == {"metadata": {"name": "web"}}
    await cluster.create(Ref("a", TOKEN_REVIEW, "", ""), {"spec": {"token": "t"}})
    assert apiserver.requests[-1].path == "/apis/authentication.k8s.io/v1/tokenreviews"


async def test_a_token_is_requested_as_a_subresource_of_its_service_account(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """If the apiserver denies the request, the error names the token subresource."""
    account, request = Ref("a", SERVICE_ACCOUNT, "default", "robot"), {"spec": {"expirationSeconds": 600}}
    issued = {**request, "status": {"token": "t"}}
    apiserver.queue("write", answer(issued, 201))
    assert orjson.loads(await cluster.issue(account, request)) == issued
    received = apiserver.requests[-1]
    assert (received.method, received.path) == ("POST", "/api/v1/namespaces/default/serviceaccounts/robot/token")
    assert received.json() == request
    apiserver.queue("write", refusal(403, "Forbidden"))
    with pytest.raises(Denied) as error:
        await cluster.issue(account, request)
    assert error.value.doing == "create ServiceAccount default/robot token"


@pytest.mark.parametrize(
    ("patch", "sent", "more"),
    [
        (Patch("merge-patch", {"a": None}), "application/merge-patch+json", {}),
        (Patch("strategic-merge-patch", {"a": 1}), "application/strategic-merge-patch+json", {}),
        (Patch("json-patch", [{"op": "remove", "path": "/a"}]), "application/json-patch+json", {}),
        (Patch("apply-patch", {"kind": "Lease"}), "application/apply-patch+yaml", {"force": "true"}),
    ],
)
async def test_each_type_of_patch_is_sent_with_its_media_type(
    apiserver: ScriptedApiserver, cluster: HttpCluster, patch: Patch, sent: str, more: Mapping[str, str]
) -> None:
    """The Content-Type is that of the patch; an apply patch also takes over fields of other managers by force."""
    await cluster.patch(REF, patch, "status")
    request = apiserver.requests[-1]
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/default/pods/web/status")
    assert (request.headers["content-type"], request.query, request.json()) == (sent, {**WRITTEN, **more}, patch.body)


async def test_every_delete_has_a_uid_precondition(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """The body has the UID, and a resourceVersion and a grace period (also one of 0) only if they are passed."""
    await cluster.delete(REF, uid="u-1", grace=0)
    await cluster.delete(Ref("a", NODE, "", "n"), uid="u-2")
    await cluster.delete(REF, uid="u-3", version="17")
    first, second, third = apiserver.requests
    base = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    assert (first.method, first.json()) == (
        "DELETE",
        {**base, "preconditions": {"uid": "u-1"}, "gracePeriodSeconds": 0},
    )
    assert (second.path, second.json()) == ("/api/v1/nodes/n", {**base, "preconditions": {"uid": "u-2"}})
    assert third.json() == {**base, "preconditions": {"uid": "u-3", "resourceVersion": "17"}}


async def test_an_object_of_more_than_a_megabyte_is_sent_whole(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """The client does not limit the size of an object in a request."""
    body = {"data": {"k": "x" * 1_500_000}}
    await cluster.create(Ref("a", CONFIG_MAP, "default", "big"), body)
    assert apiserver.requests[-1].json() == body


async def test_version_returns_the_version_of_the_apiserver(cluster: HttpCluster) -> None:
    """The version is the gitVersion that the apiserver returns at /version."""
    assert await cluster.version() == "v1.36.3"


async def test_a_list_requests_all_pages(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """Each request is a quorum read of up to 500 objects with the selectors and the last page's continue token."""
    apiserver.queue("list", listing(20, make_pod("a", 5), more="to/ken="), listing(20, make_pod("b", 6)))
    found = await cluster.list(POD, Selection("default", "x in (a,b)", "spec.nodeName=n"))
    assert [orjson.loads(raw)["metadata"]["name"] for raw in found.items] == ["a", "b"]
    assert found.version == "20"
    first, second = (request.query for request in apiserver.requests)
    selection = {"labelSelector": "x in (a,b)", "fieldSelector": "spec.nodeName=n"}
    assert first == {**selection, "limit": "500"}
    assert second == {**first, "continue": "to/ken="}


async def test_the_objects_of_a_page_are_read_while_the_next_page_is_requested(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """The reader gets the objects of the first page although the server has not answered for the second one."""
    seen: list[str] = []
    both = asyncio.Event()

    def read(raw: bytes) -> None:
        """Record the name of the object."""
        seen.append(orjson.loads(raw)["metadata"]["name"])
        if len(seen) > 1:
            both.set()

    apiserver.queue("list", listing(20, make_pod("a", 5), make_pod("b", 6), more="c"), Hang())
    listed = asyncio.ensure_future(cluster.list(POD, Selection(), read))
    async with asyncio.timeout(WAIT):
        await both.wait()
    assert (seen, len(apiserver.requests_of("list")), listed.done()) == (["a", "b"], 2, False)
    listed.cancel()
    await asyncio.gather(listed, return_exceptions=True)


async def test_a_list_starts_again_without_pages_if_its_continue_token_expires(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """If etcd compacts between two pages, one unpaged request returns everything, in the order of the response."""
    pages = (
        listing(20, make_pod("a", 5), more="c"),
        refusal(410, "Expired"),
        listing(30, make_pod("b", 25), make_pod("c", 26)),
    )
    apiserver.queue("list", *pages)
    found = await cluster.list(POD, Selection(), lambda raw: orjson.loads(raw)["metadata"]["name"])
    assert found == (["b", "c"], "30")
    assert (apiserver.requests[-1].path, apiserver.requests[-1].query) == ("/api/v1/pods", {})


async def test_a_list_raises_unreachable_if_an_object_cannot_be_parsed(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """The error names the exception of the reader, and the pending request for the next page is canceled."""
    apiserver.queue("list", listing(20, make_pod("a", 5), more="c"), Hang())
    with pytest.raises(Unreachable, match="ZeroDivisionError"):
        await cluster.list(POD, Selection(), lambda _: 1 // 0)
    assert await cluster.version() == "v1.36.3"


async def test_a_rejected_write_raises_an_error_and_is_not_repeated(apiserver: ScriptedApiserver) -> None:
    """The error names the cluster and the request, and the hook is called with the result of each write."""
    observed: list[tuple[str, str, str]] = []
    cluster = HttpCluster("a", access_to(apiserver.port), observe=lambda *what: observed.append(what))
    apiserver.queue("write", refusal(409, "Conflict"))
    with pytest.raises(Conflict) as refused:
        await cluster.patch(REF, Patch("merge-patch", {}))
    await cluster.create(REF, {})
    await cluster.close()
    assert (refused.value.cluster, refused.value.doing) == ("a", "patch Pod default/web")
    assert observed == [("patch", "Pod", "Conflict"), ("create", "Pod", "ok")]
    assert [request.method for request in apiserver.requests] == ["PATCH", "POST"]


async def test_every_request_is_counted_by_method_and_status(apiserver: ScriptedApiserver) -> None:
    """The status is 0 if there is no response.

    Each try of a read counts, and a watch counts once the server answers it.
    """
    requests = RequestMetrics()
    cluster = HttpCluster("a", access_to(apiserver.port), requests=requests)
    half = DropConnection(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{")
    apiserver.queue("list", half, answer(make_pod("web", 12)))
    apiserver.queue("write", refusal(409, "Conflict"))
    await cluster.read(REF)
    with pytest.raises(Conflict):
        await cluster.patch(REF, Patch("merge-patch", {}))
    apiserver.queue("watch", refusal(410, "Expired"))
    with pytest.raises(Expired):
        await anext(cluster.watch(POD, Selection(), "1", 1))
    await cluster.close()
    here = ("127.0.0.1", apiserver.port)
    assert {key[:2] for key in requests.counts} == {here}
    assert sum(requests.counts.values()) == len(apiserver.requests)
    once = {key[2:]: count for key, count in requests.counts.items() if key[2:] != ("GET", 200)}
    assert once == {("GET", 0): 1, ("PATCH", 409): 1, ("GET", 410): 1}
    assert sum(requests.durations[*here, "PATCH"].counts) == 1
    assert requests.durations[*here, "GET"].total > 0


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 201 Created\r\nContent-Length: 90\r\n\r\n{"])
async def test_a_write_is_not_repeated_if_its_response_is_lost(
    apiserver: ScriptedApiserver, cluster: HttpCluster, first: bytes
) -> None:
    """Whether the write took effect is for the next decision to find out."""
    apiserver.queue("write", DropConnection(first), answer({}))
    with pytest.raises(Unreachable, match="closed the connection"):
        await cluster.create(REF, {})
    assert len(apiserver.requests_of("write")) == 1


async def test_a_read_is_retried_up_to_three_times_if_its_connection_breaks(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """A denied read is not retried, because it would be denied again."""
    half = DropConnection(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{")
    apiserver.queue("list", half, half, answer(make_pod("web", 12)), half, half, half, refusal(403, "Forbidden"))
    assert orjson.loads(await cluster.read(REF)) == make_pod("web", 12)
    assert len(apiserver.requests) == 3
    for error, count in ((Unreachable, 6), (Denied, 7)):
        with pytest.raises(error):
            await cluster.read(REF)
        assert len(apiserver.requests) == count


async def test_a_read_waits_for_a_short_retry_after(apiserver: ScriptedApiserver) -> None:
    """A short Retry-After is waited for within the call; a long one raises Throttled, and the caller decides."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        """Record the wait instead of waiting."""
        waited.append(seconds)

    cluster = HttpCluster("a", access_to(apiserver.port), sleep=wait)
    apiserver.queue("list", refusal(429, "TooManyRequests", Retry_After="4"), answer(make_pod("web", 12)))
    await cluster.read(REF)
    apiserver.queue("list", refusal(429, "TooManyRequests", Retry_After="60"))
    with pytest.raises(Throttled) as refused:
        await cluster.read(REF)
    await cluster.close()
    assert waited == [4.0]
    assert refused.value.retry_after == 60.0


async def test_a_read_raises_unreachable_if_the_response_is_a_web_page(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """The media type shows that a response with status 200 is the login page of a proxy."""
    apiserver.queue("list", HttpResponse(200, b"<html>", {"Content-Type": "text/html"}))
    with pytest.raises(Unreachable, match="text/html"):
        await cluster.read(REF)


async def test_the_error_names_the_address_if_the_connection_is_refused() -> None:
    """Health also records that no connection could be opened."""
    cluster = HttpCluster("a", access_to(1))
    with pytest.raises(
        Unreachable, match=r"cannot connect to 127\.0\.0\.1:1 \(Connection refused\): check the address"
    ):
        await cluster.read(REF)
    assert cluster.health.unconnected
    await cluster.close()


@pytest.mark.parametrize("name", ["../secrets/x", "a/b", "..", ".", "a%2fb", "%"])
async def test_a_name_that_would_change_the_request_path_is_rejected(
    apiserver: ScriptedApiserver, cluster: HttpCluster, name: str
) -> None:
    """Kubernetes does not validate references inside pods, so the client raises Denied before it sends any request."""
    for ref in (Ref("a", CONFIG_MAP, "default", name), Ref("a", CONFIG_MAP, name, "x")):
        with pytest.raises(Denied, match="is not a valid name in Kubernetes"):
            await cluster.read(ref)
        with pytest.raises(Denied):
            await cluster.create(ref, {})
        with pytest.raises(Denied):
            await cluster.delete(ref, uid="u")
    assert apiserver.requests == []


async def test_special_characters_in_names_are_percent_encoded(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """A question mark in a name is a part of the path and does not begin a query."""
    await cluster.read(Ref("a", CONFIG_MAP, "default", "a?watch=1#b c"))
    assert apiserver.requests[-1].path == "/api/v1/namespaces/default/configmaps/a%3Fwatch%3D1%23b%20c"


async def test_requests_beyond_the_burst_wait_for_the_rate_limit(apiserver: ScriptedApiserver) -> None:
    """Reads and writes share one rate limit."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        """Record the wait instead of waiting."""
        waited.append(round(seconds, 3))

    cluster = HttpCluster("a", access_to(apiserver.port), qps=10, burst=2, clock=lambda: 5.0, sleep=wait)
    await cluster.read(REF)
    await cluster.create(REF, {})
    await cluster.read(REF)
    await cluster.delete(REF, uid="u")
    await cluster.close()
    assert waited == [0.1, 0.2]


@pytest.mark.parametrize("status", [403, 404, 429, 503])
async def test_the_error_page_of_a_load_balancer_does_not_count_as_contact(
    apiserver: ScriptedApiserver, cluster: HttpCluster, status: int
) -> None:
    """It may even have a Retry-After; an apiserver explains every rejection with a Status."""
    apiserver.queue("identity", HttpResponse(status, b"<html>", {"Content-Type": "text/html", "Retry-After": "60"}))
    with pytest.raises(Unreachable):
        await cluster.identify()
    assert cluster.health.error


async def test_a_request_is_retried_if_a_busy_apiserver_rejects_it_without_a_status(
    apiserver: ScriptedApiserver,
) -> None:
    """An overloaded apiserver rejects some requests in plain text with a Retry-After, and serves the others."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        """Record the wait instead of waiting."""
        waited.append(seconds)

    cluster = HttpCluster("a", access_to(apiserver.port), sleep=wait)
    busy = b"Too many requests, please try again later.\n"
    headers = {"Content-Type": "text/plain; charset=utf-8", "Retry-After": "1"}
    apiserver.queue("identity", HttpResponse(429, busy, headers))
    await cluster.identify()
    assert (waited, cluster.health.error, cluster.identity.in_doubt) == ([1.0], "", False)
    await cluster.close()


async def test_a_failed_aggregated_api_or_eviction_does_not_affect_the_clusters_health(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """Only if a read from the cluster's own apiserver fails, health records an error."""
    await cluster.identify()
    groups = answer({"groups": [{"versions": [{"groupVersion": "metrics.k8s.io/v1beta1"}]}]})
    down = refusal(503, "ServiceUnavailable")
    apiserver.queue("list", groups, answer({"resources": []}), down)
    apiserver.queue("write", refusal(500, "InternalError"))
    for request in (cluster.kinds(), cluster.evict(REF, uid="u")):
        with pytest.raises(Unreachable):
            await request
        assert cluster.health.error == ""
    apiserver.queue("list", down)
    with pytest.raises(Unreachable):
        await cluster.kinds()
    assert cluster.health.error


async def test_a_list_of_a_custom_resource_may_have_any_kind(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """A CustomResourceDefinition may set `listKind`; for a built-in kind, any other list kind is an error."""
    found = {"kind": "WidgetCollection", "metadata": {"resourceVersion": "7"}, "items": []}
    apiserver.queue("list", answer(found), answer(found))
    widgets = Kind("example.com/v1", "Widget", "widgets", namespaced=True)
    assert (await cluster.list(widgets, Selection())).version == "7"
    with pytest.raises(Unreachable, match="a WidgetCollection instead of a PodList"):
        await cluster.list(POD, Selection())
