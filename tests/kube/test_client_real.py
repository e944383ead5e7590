"""Tests of the client against a real apiserver: each class of error with a real cause, and the results of calls."""

import asyncio
import base64
import itertools
import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest

from tensile.errors import AlreadyExists, Conflict, Denied, Expired, NotFound, Unauthorized
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Patch, Selection
from tensile.kube.credentials import Access, from_kubeconfig
from tensile.kube.responses import RequestInfo
from tensile.kube.tls import TLSMaterial
from tensile.objects import CONFIG_MAP, NAMESPACE, POD, SECRET, SERVICE_ACCOUNT, Kind, Manifest, Ref

if TYPE_CHECKING:
    from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

QUOTA = Kind("v1", "ResourceQuota", "resourcequotas", namespaced=True)
WAIT = 20.0


@pytest.fixture
async def lower(sandbox: "Sandbox") -> AsyncIterator[HttpCluster]:
    """A client of the first lower cluster, with the rights of its administrator."""
    cluster = HttpCluster("lower-a", await from_kubeconfig(sandbox.directory / "lower-a.kubeconfig"))
    yield cluster
    await cluster.close()


@pytest.fixture
async def namespace(lower: HttpCluster) -> AsyncIterator[str]:
    """A namespace that only this test uses."""
    ref = Ref("lower-a", NAMESPACE, "", f"client-{uuid.uuid4().hex[:8]}")
    made = orjson.loads(await lower.create(ref, {"metadata": {"name": ref.name}}))
    yield ref.name
    await lower.delete(ref, uid=made["metadata"]["uid"])


def at(namespace: str, name: str, kind: Kind = CONFIG_MAP) -> Ref:
    """Return the reference of an object in the lower cluster."""
    return Ref("lower-a", kind, namespace, name)


async def made(lower: HttpCluster, ref: Ref, **more: object) -> Manifest:
    """Create an object and return it as stored."""
    stored: Manifest = orjson.loads(await lower.create(ref, {"metadata": {"name": ref.name}, **more}))
    return stored


def uid_of(manifest: Manifest) -> str:
    """Return the UID of a stored object."""
    return str(manifest["metadata"]["uid"])


async def test_an_object_can_be_created_read_patched_and_deleted(lower: HttpCluster, namespace: str) -> None:
    """Its only field manager is ours, and after the deletion a read raises NotFound."""
    ref = at(namespace, "life")
    stored = await made(lower, ref, data={"a": "1"})
    assert orjson.loads(await lower.read(ref)) == stored
    body = {"metadata": {"uid": uid_of(stored)}, "data": {"a": "2"}}
    changed = orjson.loads(await lower.patch(ref, Patch("merge-patch", body)))
    assert changed["data"] == {"a": "2"}
    managers = {entry["manager"] for entry in changed["metadata"]["managedFields"]}
    assert managers == {"tensile-kube"}
    await lower.delete(ref, uid=uid_of(stored))
    with pytest.raises(NotFound):
        await lower.read(ref)


async def test_already_exists_and_conflict_are_distinguished(lower: HttpCluster, namespace: str) -> None:
    """The apiserver returns 409 for both; the reason of the Status distinguishes them."""
    ref = at(namespace, "taken")
    stored = await made(lower, ref)
    with pytest.raises(AlreadyExists) as taken:
        await made(lower, ref)
    assert (taken.value.status, taken.value.reason) == (409, "AlreadyExists")
    stale = {"metadata": {"resourceVersion": stored["metadata"]["resourceVersion"]}, "data": {"a": "1"}}
    await lower.patch(ref, Patch("merge-patch", stale))
    with pytest.raises(Conflict) as lost:
        await lower.patch(ref, Patch("merge-patch", {**stale, "data": {"a": "2"}}))
    assert (lost.value.status, lost.value.reason) == (409, "Conflict")


@pytest.mark.parametrize("media", ["merge-patch", "strategic-merge-patch", "apply-patch"])
async def test_a_patch_with_the_uid_of_another_object_is_a_conflict(
    lower: HttpCluster, namespace: str, media: str
) -> None:
    """The UID in the body is a precondition for each type of patch, whatever error Kubernetes returns for it."""
    ref = at(namespace, "fenced")
    await made(lower, ref, data={"a": "1"})
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fenced", "uid": str(uuid.uuid4())}}
    with pytest.raises(Conflict):
        await lower.patch(ref, Patch(media, {**body, "data": {"a": "2"}}))
    assert orjson.loads(await lower.read(ref))["data"] == {"a": "1"}


async def test_a_status_patch_with_the_uid_of_another_pod_is_a_conflict(lower: HttpCluster, namespace: str) -> None:
    """The UID is a precondition also for a strategic merge patch of the status subresource."""
    ref = at(namespace, "status", POD)
    await made(lower, ref, spec={"containers": [{"name": "c", "image": "i"}], "schedulerName": "nobody"})
    body = {"metadata": {"uid": str(uuid.uuid4())}, "status": {"phase": "Running"}}
    with pytest.raises(Conflict):
        await lower.patch(ref, Patch("strategic-merge-patch", body), "status")


async def test_an_apply_patch_with_a_uid_does_not_create_an_absent_object(lower: HttpCluster, namespace: str) -> None:
    """Server-side apply creates an absent object unless the body has a UID."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gone", "uid": str(uuid.uuid4())}}
    with pytest.raises(Conflict):
        await lower.patch(at(namespace, "gone"), Patch("apply-patch", body))


async def test_a_delete_with_the_uid_of_another_object_is_a_conflict(lower: HttpCluster, namespace: str) -> None:
    """The object with that name still exists afterwards."""
    ref = at(namespace, "kept")
    await made(lower, ref)
    with pytest.raises(Conflict):
        await lower.delete(ref, uid=str(uuid.uuid4()))
    await lower.read(ref)


async def test_an_unscheduled_pod_is_deleted_at_once_with_a_grace_period_of_zero(
    lower: HttpCluster, namespace: str
) -> None:
    """A read right after the delete raises NotFound."""
    ref = at(namespace, "graceful", POD)
    stored = await made(lower, ref, spec={"containers": [{"name": "c", "image": "i"}], "schedulerName": "nobody"})
    await lower.delete(ref, uid=uid_of(stored), grace=0)
    with pytest.raises(NotFound):
        await lower.read(ref)


async def test_requests_for_an_absent_object_or_namespace_raise_not_found(lower: HttpCluster, namespace: str) -> None:
    """This applies to reads, patches and deletes of an absent object, and to a create in an absent namespace."""
    ref = at(namespace, "nothing")
    with pytest.raises(NotFound):
        await lower.read(ref)
    with pytest.raises(NotFound):
        await lower.patch(ref, Patch("merge-patch", {"data": {}}))
    with pytest.raises(NotFound):
        await lower.delete(ref, uid="u")
    with pytest.raises(NotFound):
        await made(lower, at("no-such-namespace", "x"))


async def secrets_without_end(lower: HttpCluster, namespace: str) -> None:
    """Create Secrets until admission, which learns of a quota after a delay, rejects one."""
    async with asyncio.timeout(20):
        for number in itertools.count():
            await made(lower, at(namespace, f"s{number}", SECRET))


async def test_an_exceeded_quota_is_a_denial_with_the_message_of_the_apiserver(
    lower: HttpCluster, namespace: str
) -> None:
    """The 403 of an admission plugin names the quota that a user has to change."""
    stored = await made(lower, at(namespace, "full", QUOTA), spec={"hard": {"count/secrets": "0"}})
    status = {
        "metadata": {"uid": uid_of(stored)},
        "status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}},
    }
    await lower.patch(at(namespace, "full", QUOTA), Patch("merge-patch", status), "status")
    with pytest.raises(Denied, match="exceeded quota: full") as denied:
        await secrets_without_end(lower, namespace)
    assert (denied.value.status, denied.value.reason) == (403, "Forbidden")


async def test_an_invalid_request_is_a_denial(lower: HttpCluster, namespace: str) -> None:
    """Immutable data, excessive size, an invalid name and a malformed patch return 400, 413 or 422; no retry helps."""
    ref = at(namespace, "fixed")
    stored = await made(lower, ref, data={"a": "1"}, immutable=True)
    body = {"metadata": {"uid": uid_of(stored)}, "data": {"a": "2"}}
    with pytest.raises(Denied) as immutable:
        await lower.patch(ref, Patch("merge-patch", body))
    assert immutable.value.status == 422
    large = base64.b64encode(b"x" * (1 << 20) + b"x").decode()
    with pytest.raises(Denied) as over:
        await made(lower, at(namespace, "large", SECRET), data={"k": large})
    assert over.value.status == 422
    with pytest.raises(Denied) as huge:
        await made(lower, at(namespace, "huge"), data={"k": "x" * (4 << 20)})
    assert huge.value.status == 413
    with pytest.raises(Denied) as misspelt:
        await made(lower, at(namespace, "UPPER_CASE"))
    assert misspelt.value.status == 422
    with pytest.raises(Denied) as malformed:
        await lower.patch(ref, Patch("json-patch", {"not": "a list"}))
    assert malformed.value.status == 400


async def test_a_create_in_a_terminating_namespace_is_a_denial_with_its_cause(lower: HttpCluster) -> None:
    """The cause is machine-readable, so that the engine can wait for the end of the namespace."""
    ref = Ref("lower-a", NAMESPACE, "", f"ending-{uuid.uuid4().hex[:8]}")
    stored = await made(lower, ref)
    held = at(ref.name, "held")
    kept = orjson.loads(await lower.create(held, {"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}))
    await lower.delete(ref, uid=uid_of(stored))
    with pytest.raises(Denied) as denied:
        await made(lower, at(ref.name, "late"))
    assert denied.value.causes == ("NamespaceTerminating",)
    release = {"metadata": {"uid": uid_of(kept), "finalizers": None}}
    await lower.patch(held, Patch("merge-patch", release))


async def test_a_create_with_unknown_fields_succeeds_without_them(lower: HttpCluster, namespace: str) -> None:
    """An object of a newer upper cluster can be created in an older lower cluster, which drops the unknown fields."""
    stored = await made(lower, at(namespace, "newer"), data={"a": "1"}, fieldOfTomorrow={"x": 1})
    assert "fieldOfTomorrow" not in stored


async def test_an_invalid_token_raises_unauthorized_unless_a_renewed_credential_works(
    lower: HttpCluster, sandbox: "Sandbox"
) -> None:
    """After a 401 the client renews its credential once and repeats the request if it got a different one."""
    good = await from_kubeconfig(sandbox.directory / "lower-a.kubeconfig")
    without = _without_certificate(good.tls)
    bare = replace(good, tls=without, papers=TLSMaterial(), headers={"Authorization": "Bearer wrong"})

    async def nothing_better() -> Access:
        """Return the same invalid token again."""
        return bare

    stuck = HttpCluster("lower-a", replace(bare, renew=nothing_better))
    with pytest.raises(Unauthorized) as refused:
        await stuck.read(at("", "default", NAMESPACE))
    await stuck.close()
    assert refused.value.status == 401
    mended = HttpCluster("lower-a", replace(bare, renew=good.renew))
    await mended.read(at("", "default", NAMESPACE))
    await mended.close()


def _without_certificate(known: ssl.SSLContext) -> ssl.SSLContext:
    """Return a TLS context that trusts the same CAs and presents no client certificate."""
    context = ssl.create_default_context()
    context.load_verify_locations(cadata="".join(map(ssl.DER_cert_to_PEM_cert, known.get_ca_certs(binary_form=True))))
    return context


async def test_a_serviceaccount_without_permissions_gets_denied(
    lower: HttpCluster, namespace: str, sandbox: "Sandbox"
) -> None:
    """A 403 of the authorizer is a denial, and not a rejected credential."""
    await made(lower, at(namespace, "nobody", SERVICE_ACCOUNT))
    tokens = Kind("v1", "TokenRequest", "serviceaccounts/nobody/token", namespaced=True)
    answer = orjson.loads(
        await lower.create(Ref("lower-a", tokens, namespace, ""), {"spec": {"expirationSeconds": 600}})
    )
    good = await from_kubeconfig(sandbox.directory / "lower-a.kubeconfig")
    headers = {"Authorization": f"Bearer {answer['status']['token']}"}
    nobody = HttpCluster("lower-a", replace(good, tls=_without_certificate(good.tls), headers=headers))
    with pytest.raises(Denied) as denied:
        await nobody.list(CONFIG_MAP, Selection())
    await nobody.close()
    assert (denied.value.status, denied.value.reason) == (403, "Forbidden")


async def test_a_list_of_more_than_one_page_returns_every_object_once(lower: HttpCluster, namespace: str) -> None:
    """Label and field selectors select objects, and an empty selection still has a current resourceVersion."""
    await asyncio.gather(
        *(
            lower.create(at(namespace, f"many-{n}"), {"metadata": {"name": f"many-{n}", "labels": {"odd": str(n % 2)}}})
            for n in range(520)
        )
    )
    everything = await lower.list(CONFIG_MAP, Selection(namespace))
    names = {orjson.loads(raw)["metadata"]["name"] for raw in everything.items}
    assert names >= {f"many-{n}" for n in range(520)}
    assert len(names) == len(everything.items)
    odd = await lower.list(CONFIG_MAP, Selection(namespace, "odd=1"))
    assert len(odd.items) == 260
    one = await lower.list(CONFIG_MAP, Selection(namespace, fields="metadata.name=many-7"))
    assert len(one.items) == 1
    nothing = await lower.list(CONFIG_MAP, Selection(namespace, fields="metadata.name=-"))
    assert nothing.items == []
    assert int(nothing.version) >= int(everything.version)


async def test_a_watch_returns_the_events_since_the_list_in_order(lower: HttpCluster, namespace: str) -> None:
    """It returns creations, changes and deletions of selected objects only, and ends after the requested time."""
    listing = await lower.list(CONFIG_MAP, Selection(namespace, "mine=yes"))
    ref = at(namespace, "watched")
    stored = orjson.loads(await lower.create(ref, {"metadata": {"name": "watched", "labels": {"mine": "yes"}}}))
    await made(lower, at(namespace, "unwatched"))
    await lower.patch(ref, Patch("merge-patch", {"metadata": {"uid": uid_of(stored)}, "data": {"a": "1"}}))
    await lower.delete(ref, uid=uid_of(stored))
    events = lower.watch(CONFIG_MAP, Selection(namespace, "mine=yes"), listing.version, 2)
    async with asyncio.timeout(WAIT):
        seen = [(event.type, orjson.loads(event.raw)["metadata"].get("name")) async for event in events]
    assert [one for one in seen if one[0] != "BOOKMARK"] == [
        ("ADDED", "watched"),
        ("MODIFIED", "watched"),
        ("DELETED", "watched"),
    ]


async def test_a_watch_returns_a_secret_of_the_maximum_size(lower: HttpCluster, namespace: str) -> None:
    """A Secret of one megabyte, the largest that Kubernetes accepts, is received whole."""
    listing = await lower.list(SECRET, Selection(namespace))
    data = base64.b64encode(b"x" * (1 << 20)).decode()
    await made(lower, at(namespace, "large", SECRET), data={"k": data})
    events = lower.watch(SECRET, Selection(namespace), listing.version, 30)
    async with asyncio.timeout(WAIT), aclosing(events):
        seen = await anext(events)
    assert orjson.loads(seen.raw)["data"]["k"] == data


async def test_a_list_with_a_future_resource_version_raises_expired(lower: HttpCluster) -> None:
    """The 504 with the cause ResourceVersionTooLarge is distinguished from the 504 of a slow server."""
    doing = RequestInfo("lower-a", "list", "ConfigMap")
    target = "/api/v1/configmaps?resourceVersion=999999999&resourceVersionMatch=NotOlderThan"
    with pytest.raises(Expired) as ended:
        await lower._read(doing, target)
    assert ended.value.causes == ("ResourceVersionTooLarge",)


async def test_identify_and_version_return_the_values_of_the_cluster(lower: HttpCluster) -> None:
    """The identity is the UID of namespace kube-system."""
    uid = await lower.identify()
    kube_system = orjson.loads(await lower.read(at("", "kube-system", NAMESPACE)))
    assert uid == uid_of(kube_system)
    assert (await lower.version()).startswith("v1.")


async def test_kinds_returns_every_namespaced_kind_once(lower: HttpCluster, namespace: str) -> None:
    """Kinds of all API groups are included, cluster-scoped kinds are not, and each kind can be listed."""
    kinds = await lower.kinds()
    assert {POD, CONFIG_MAP, SECRET, SERVICE_ACCOUNT, QUOTA} <= set(kinds)
    assert {"apps/v1", "batch/v1", "coordination.k8s.io/v1"} <= {kind.api for kind in kinds}
    assert NAMESPACE not in kinds
    names = [(kind.api.rpartition("/")[0], kind.plural) for kind in kinds]
    assert len(names) == len(set(names))
    for kind in kinds:
        assert (await lower.list(kind, Selection(namespace))).version
