"""The client against a scripted apiserver: what it sends, what it makes of answers, what it never does."""

import asyncio
from collections.abc import Mapping

import orjson
import pytest
from scripted import WAIT, Answer, Apiserver, Drop, Hang, access_to, answer, listing, pod, refusal

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


async def test_a_read_is_at_quorum(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A GET without a resourceVersion, which Kubernetes answers from a quorum, returns the very bytes of the answer."""
    raw = orjson.dumps(pod("web", 12, extra=[1, {}]))
    apiserver.play("list", Answer(body=raw))
    assert await cluster.read(REF) == raw
    asked = apiserver.asked[-1]
    assert (asked.method, asked.path, asked.query) == ("GET", "/api/v1/namespaces/default/pods/web", {})
    assert asked.headers["user-agent"] == f"tensile/{__version__}"
    assert asked.headers["accept"] == "application/json"


async def test_a_create_posts_the_object_to_its_collection(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """The body is the manifest, as JSON, under our field manager's name; the stored object comes back.

    Reviews are creates of objects that nobody stores and that have no name.
    """
    stored = orjson.dumps(pod("web", 12))
    apiserver.play("write", Answer(201, stored))
    assert await cluster.create(REF, {"metadata": {"name": "web"}}) == stored
    asked = apiserver.asked[-1]
    assert (asked.method, asked.path, asked.query) == ("POST", "/api/v1/namespaces/default/pods", WRITTEN)
    assert asked.headers["content-type"] == "application/json"
    assert asked.json() == {"metadata": {"name": "web"}}
    await cluster.create(Ref("a", TOKEN_REVIEW, "", ""), {"spec": {"token": "t"}})
    assert apiserver.asked[-1].path == "/apis/authentication.k8s.io/v1/tokenreviews"


async def test_a_token_is_asked_of_its_account(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """As the account's subresource; a refusal is the apiserver's."""
    account, request = Ref("a", SERVICE_ACCOUNT, "default", "robot"), {"spec": {"expirationSeconds": 600}}
    issued = {**request, "status": {"token": "t"}}
    apiserver.play("write", answer(issued, 201))
    assert orjson.loads(await cluster.issue(account, request)) == issued
    asked = apiserver.asked[-1]
    assert (asked.method, asked.path) == ("POST", "/api/v1/namespaces/default/serviceaccounts/robot/token")
    assert asked.json() == request
    apiserver.play("write", refusal(403, "Forbidden"))
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
async def test_a_patch_names_its_kind_by_media_type(
    apiserver: Apiserver, cluster: HttpCluster, patch: Patch, sent: str, more: Mapping[str, str]
) -> None:
    """Each kind of patch has its media type; applying takes fields over from others."""
    await cluster.patch(REF, patch, "status")
    asked = apiserver.asked[-1]
    assert (asked.method, asked.path) == ("PATCH", "/api/v1/namespaces/default/pods/web/status")
    assert (asked.headers["content-type"], asked.query, asked.json()) == (sent, {**WRITTEN, **more}, patch.body)


async def test_every_delete_carries_the_uid(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """The precondition is in the body, and a grace period only when one is given, zero included."""
    await cluster.delete(REF, uid="u-1", grace=0)
    await cluster.delete(Ref("a", NODE, "", "n"), uid="u-2")
    await cluster.delete(REF, uid="u-3", version="17")
    first, second, third = apiserver.asked
    base = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    assert (first.method, first.json()) == (
        "DELETE",
        {**base, "preconditions": {"uid": "u-1"}, "gracePeriodSeconds": 0},
    )
    assert (second.path, second.json()) == ("/api/v1/nodes/n", {**base, "preconditions": {"uid": "u-2"}})
    assert third.json() == {**base, "preconditions": {"uid": "u-3", "resourceVersion": "17"}}


async def test_a_large_body_goes_through(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """Objects over a megabyte are sent whole and without a warning."""
    body = {"data": {"k": "x" * 1_500_000}}
    await cluster.create(Ref("a", CONFIG_MAP, "default", "big"), body)
    assert apiserver.asked[-1].json() == body


async def test_the_release_is_read(cluster: HttpCluster) -> None:
    """The server's version is that of its /version."""
    assert await cluster.version() == "v1.36.3"


async def test_a_list_goes_through_all_pages(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """Pages of 500 at quorum, with the token of the page before; selectors go along with each."""
    apiserver.play("list", listing(20, pod("a", 5), more="to/ken="), listing(20, pod("b", 6)))
    found = await cluster.list(POD, Selection("default", "x in (a,b)", "spec.nodeName=n"))
    assert [orjson.loads(raw)["metadata"]["name"] for raw in found.items] == ["a", "b"]
    assert found.version == "20"
    first, second = (asked.query for asked in apiserver.asked)
    selection = {"labelSelector": "x in (a,b)", "fieldSelector": "spec.nodeName=n"}
    assert first == {**selection, "limit": "500"}
    assert second == {**first, "continue": "to/ken="}


async def test_a_page_is_read_while_the_next_one_is_made(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """The first page is looked through though the server has yet to answer for the second."""
    seen: list[str] = []
    both = asyncio.Event()

    def read(raw: bytes) -> None:
        """Keep the name."""
        seen.append(orjson.loads(raw)["metadata"]["name"])
        if len(seen) > 1:
            both.set()

    apiserver.play("list", listing(20, pod("a", 5), pod("b", 6), more="c"), Hang())
    listed = asyncio.ensure_future(cluster.list(POD, Selection(), read))
    async with asyncio.timeout(WAIT):
        await both.wait()
    assert (seen, len(apiserver.of("list")), listed.done()) == (["a", "b"], 2, False)
    listed.cancel()
    await asyncio.gather(listed, return_exceptions=True)


async def test_a_list_gives_what_was_read(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """In the order of the pages; when etcd compacts between two of them, one request for everything follows."""
    pages = listing(20, pod("a", 5), more="c"), refusal(410, "Expired"), listing(30, pod("b", 25), pod("c", 26))
    apiserver.play("list", *pages)
    found = await cluster.list(POD, Selection(), lambda raw: orjson.loads(raw)["metadata"]["name"])
    assert found == (["b", "c"], "30")
    assert (apiserver.asked[-1].path, apiserver.asked[-1].query) == ("/api/v1/pods", {})


async def test_an_object_that_cannot_be_read_is_the_clusters_fault(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """What a reader raises is told with its words, and no request is left behind."""
    apiserver.play("list", listing(20, pod("a", 5), more="c"), Hang())
    with pytest.raises(Unreachable, match="ZeroDivisionError"):
        await cluster.list(POD, Selection(), lambda _: 1 // 0)
    assert await cluster.version() == "v1.36.3"


async def test_a_refused_write_is_an_error_and_is_counted(apiserver: Apiserver) -> None:
    """The error says where and what, the hook hears of it, and the write is not sent again."""
    heard: list[tuple[str, str, str]] = []
    cluster = HttpCluster("a", access_to(apiserver.port), observe=lambda *what: heard.append(what))
    apiserver.play("write", refusal(409, "Conflict"))
    with pytest.raises(Conflict) as refused:
        await cluster.patch(REF, Patch("merge-patch", {}))
    await cluster.create(REF, {})
    await cluster.close()
    assert (refused.value.cluster, refused.value.doing) == ("a", "patch Pod default/web")
    assert heard == [("patch", "Pod", "Conflict"), ("create", "Pod", "ok")]
    assert [asked.method for asked in apiserver.asked] == ["PATCH", "POST"]


async def test_every_request_is_counted(apiserver: Apiserver) -> None:
    """By method and status, 0 where no answer came; each try of a read counts, and a watch once it begins."""
    requests = RequestMetrics()
    cluster = HttpCluster("a", access_to(apiserver.port), requests=requests)
    half = Drop(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{")
    apiserver.play("list", half, answer(pod("web", 12)))
    apiserver.play("write", refusal(409, "Conflict"))
    await cluster.read(REF)
    with pytest.raises(Conflict):
        await cluster.patch(REF, Patch("merge-patch", {}))
    apiserver.play("watch", refusal(410, "Expired"))
    with pytest.raises(Expired):
        await anext(cluster.watch(POD, Selection(), "1", 1))
    await cluster.close()
    here = ("127.0.0.1", apiserver.port)
    assert {key[:2] for key in requests.counts} == {here}
    assert sum(requests.counts.values()) == len(apiserver.asked)
    once = {key[2:]: count for key, count in requests.counts.items() if key[2:] != ("GET", 200)}
    assert once == {("GET", 0): 1, ("PATCH", 409): 1, ("GET", 410): 1}
    assert sum(requests.durations[*here, "PATCH"].counts) == 1
    assert requests.durations[*here, "GET"].total > 0


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 201 Created\r\nContent-Length: 90\r\n\r\n{"])
async def test_a_write_whose_answer_was_lost_is_not_sent_again(
    apiserver: Apiserver, cluster: HttpCluster, first: bytes
) -> None:
    """Whether it happened is for the next decision to see."""
    apiserver.play("write", Drop(first), answer({}))
    with pytest.raises(Unreachable, match="closed the connection"):
        await cluster.create(REF, {})
    assert len(apiserver.of("write")) == 1


async def test_a_read_whose_connection_broke_is_asked_again(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """Up to three times in one call; what was understood and refused will be refused again."""
    half = Drop(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{")
    apiserver.play("list", half, half, answer(pod("web", 12)), half, half, half, refusal(403, "Forbidden"))
    assert orjson.loads(await cluster.read(REF)) == pod("web", 12)
    assert len(apiserver.asked) == 3
    for error, count in ((Unreachable, 6), (Denied, 7)):
        with pytest.raises(error):
            await cluster.read(REF)
        assert len(apiserver.asked) == count


async def test_a_read_waits_as_long_as_it_is_asked_to(apiserver: Apiserver) -> None:
    """A short Retry-After is waited out within the call, a long one is the caller's to decide."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        """Note the wait instead of waiting."""
        waited.append(seconds)

    cluster = HttpCluster("a", access_to(apiserver.port), sleep=wait)
    apiserver.play("list", refusal(429, "TooManyRequests", Retry_After="4"), answer(pod("web", 12)))
    await cluster.read(REF)
    apiserver.play("list", refusal(429, "TooManyRequests", Retry_After="60"))
    with pytest.raises(Throttled) as refused:
        await cluster.read(REF)
    await cluster.close()
    assert waited == [4.0]
    assert refused.value.retry_after == 60.0


async def test_a_page_instead_of_an_object_is_no_answer(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A proxy's login page with status 200 is recognised by its media type."""
    apiserver.play("list", Answer(200, b"<html>", {"Content-Type": "text/html"}))
    with pytest.raises(Unreachable, match="text/html"):
        await cluster.read(REF)


async def test_an_apiserver_that_does_not_run_is_told_by_its_address() -> None:
    """Nobody listening is said as such."""
    cluster = HttpCluster("a", access_to(1))
    with pytest.raises(
        Unreachable, match=r"cannot connect to 127\.0\.0\.1:1 \(Connection refused\): check the address"
    ):
        await cluster.read(REF)
    assert cluster.health.unconnected
    await cluster.close()


@pytest.mark.parametrize("name", ["../secrets/x", "a/b", "..", ".", "a%2fb", "%"])
async def test_a_name_cannot_lead_to_another_path(apiserver: Apiserver, cluster: HttpCluster, name: str) -> None:
    """Kubernetes does not check references inside pods; such a name is refused before anything is sent."""
    for ref in (Ref("a", CONFIG_MAP, "default", name), Ref("a", CONFIG_MAP, name, "x")):
        with pytest.raises(Denied, match="is not a valid name in Kubernetes"):
            await cluster.read(ref)
        with pytest.raises(Denied):
            await cluster.create(ref, {})
        with pytest.raises(Denied):
            await cluster.delete(ref, uid="u")
    assert apiserver.asked == []


async def test_other_signs_in_names_are_quoted(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A question mark is part of the name and begins no query."""
    await cluster.read(Ref("a", CONFIG_MAP, "default", "a?watch=1#b c"))
    assert apiserver.asked[-1].path == "/api/v1/namespaces/default/configmaps/a%3Fwatch%3D1%23b%20c"


async def test_requests_keep_to_the_rate(apiserver: Apiserver) -> None:
    """Beyond the burst each request waits for its turn, whatever it is."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        """Note the wait instead of waiting."""
        waited.append(round(seconds, 3))

    cluster = HttpCluster("a", access_to(apiserver.port), qps=10, burst=2, clock=lambda: 5.0, sleep=wait)
    await cluster.read(REF)
    await cluster.create(REF, {})
    await cluster.read(REF)
    await cluster.delete(REF, uid="u")
    await cluster.close()
    assert waited == [0.1, 0.2]


@pytest.mark.parametrize("status", [403, 404, 429, 503])
async def test_the_page_of_a_load_balancer_is_no_contact(
    apiserver: Apiserver, cluster: HttpCluster, status: int
) -> None:
    """It may even ask to come again later; an apiserver explains every refusal with a Status."""
    apiserver.play("identity", Answer(status, b"<html>", {"Content-Type": "text/html", "Retry-After": "60"}))
    with pytest.raises(Unreachable):
        await cluster.identify()
    assert cluster.health.error


async def test_a_busy_apiserver_is_asked_again(apiserver: Apiserver) -> None:
    """It refuses requests over its limit in plain text, without a Status, and answers the others."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        """Note the wait instead of waiting."""
        waited.append(seconds)

    cluster = HttpCluster("a", access_to(apiserver.port), sleep=wait)
    busy = b"Too many requests, please try again later.\n"
    headers = {"Content-Type": "text/plain; charset=utf-8", "Retry-After": "1"}
    apiserver.play("identity", Answer(429, busy, headers))
    await cluster.identify()
    assert (waited, cluster.health.error, cluster.identity.in_doubt) == ([1.0], "", False)
    await cluster.close()


async def test_an_api_of_another_server_says_nothing_about_the_cluster(
    apiserver: Apiserver, cluster: HttpCluster
) -> None:
    """Nor does an eviction that fails for what the budgets say; a failed read of the cluster's own does."""
    await cluster.identify()
    groups = answer({"groups": [{"versions": [{"groupVersion": "metrics.k8s.io/v1beta1"}]}]})
    down = refusal(503, "ServiceUnavailable")
    apiserver.play("list", groups, answer({"resources": []}), down)
    apiserver.play("write", refusal(500, "InternalError"))
    for request in (cluster.kinds(), cluster.evict(REF, uid="u")):
        with pytest.raises(Unreachable):
            await request
        assert cluster.health.error == ""
    apiserver.play("list", down)
    with pytest.raises(Unreachable):
        await cluster.kinds()
    assert cluster.health.error


async def test_a_custom_resource_names_its_lists_as_it_likes(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A definition may set `listKind`; a kind of Kubernetes has no other name for its lists."""
    found = {"kind": "WidgetCollection", "metadata": {"resourceVersion": "7"}, "items": []}
    apiserver.play("list", answer(found), answer(found))
    widgets = Kind("example.com/v1", "Widget", "widgets", namespaced=True)
    assert (await cluster.list(widgets, Selection())).version == "7"
    with pytest.raises(Unreachable, match="a WidgetCollection instead of a PodList"):
        await cluster.list(POD, Selection())
