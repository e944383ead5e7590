"""Tests of changes to running pods by kubectl in the upper cluster.

Allowed changes are applied to the lower pod, and changes that the lower cluster refuses are reported on the upper one.
"""

import asyncio
import sys
from typing import Any

import orjson
import pytest
from enginekit import A, B, Ground, ran
from sitekit import Manifest, Refused, condition_of, is_ready, is_true

from tensile.names import OWNER, SYNCED, TRIPPED_LABELS, VIRTUAL_POD
from tensile.names import WRITTEN_IMAGES as NOTE

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SIZE = {"resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}}
MAIN = {"name": "main", "image": "app:1", **SIZE}
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


async def running(ground: Ground, name: str, spec: Manifest | None = None, lower: str = A, **meta: Any) -> Manifest:
    """Run a pod with one container that has requests and limits, and return the upper pod."""
    await ground.bind(name, {"containers": [MAIN], **(spec or {})}, lower, **meta)
    return await ground.upper.until(ground.pod_path(name), is_ready)


async def below(ground: Ground, name: str, holds: Any, lower: str = A) -> Manifest:
    """Wait until a condition holds for the lower pod, and return it."""
    return await ground.sites[lower].until(ground.pod_path(name), lambda one: one and holds(one))


async def observed(ground: Ground, name: str) -> Manifest:
    """Wait until the upper pod's observedGeneration is its generation, and return the pod."""
    return await ground.upper.until(ground.pod_path(name), _is_observed)


def _is_observed(pod: Manifest) -> bool:
    return bool(pod["status"].get("observedGeneration") == pod["metadata"]["generation"])


def image_of(pod: Manifest) -> str:
    """Return the image of the first container."""
    return str(pod["spec"]["containers"][0]["image"])


async def succeeded(ground: Ground, *arguments: str) -> str:
    """Run kubectl in the upper cluster, assert that it succeeds, and return its output."""
    done = await ground.kubectl(*arguments)
    assert done.code == 0, done.err
    return done.out


async def test_an_image_that_is_set_in_the_upper_cluster_is_set_in_the_lower(ground: Ground) -> None:
    """After `kubectl set image` on a bare pod, the same lower pod has the image, and observedGeneration follows."""
    await running(ground, "imaged")
    before = await ground.sites[A].read(ground.pod_path("imaged"))
    await succeeded(ground, "set", "image", "pod/imaged", "main=app:2")
    after = await below(ground, "imaged", lambda one: image_of(one) == "app:2")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await observed(ground, "imaged"))["metadata"]["generation"] >= 2


async def test_an_image_that_is_edited_in_the_lower_cluster_is_reverted(ground: Ground) -> None:
    """A user's edit is not the lower cluster's admission, so the upper spec prevails."""
    await running(ground, "edited")
    edit = {"spec": {"containers": [{"name": MAIN["name"], "image": "theirs:1"}]}}
    await ground.sites[A].patch(ground.pod_path("edited"), edit, "strategic")
    await below(ground, "edited", lambda one: image_of(one) == "app:1")


async def test_a_deadline_that_is_set_in_the_upper_cluster_is_set_in_the_lower(ground: Ground) -> None:
    """An earlier deadline is carried down too; Kubernetes refuses any other change of a deadline."""
    await running(ground, "timed")
    for seconds in (600, 300):
        patch = orjson.dumps({"spec": {"activeDeadlineSeconds": seconds}}).decode()
        await succeeded(ground, "patch", "pod", "timed", "-p", patch)
        await below(ground, "timed", lambda one, seconds=seconds: one["spec"]["activeDeadlineSeconds"] == seconds)


async def test_tolerations_that_are_added_to_the_upper_pod_are_added_to_the_lower_pod(ground: Ground) -> None:
    """The toleration of the virtual node's taint is not copied, and the lower pod keeps all that it has."""
    above = await running(ground, "tolerant")
    before = (await ground.sites[A].read(ground.pod_path("tolerant")))["spec"]["tolerations"]
    new = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}, {"key": "gpu", "operator": "Exists"}]
    patch = orjson.dumps({"spec": {"tolerations": [*above["spec"]["tolerations"], *new]}}).decode()
    await succeeded(ground, "patch", "pod", "tolerant", "--type=merge", "-p", patch)
    after = await below(ground, "tolerant", lambda one: len(one["spec"]["tolerations"]) > len(before))
    assert after["spec"]["tolerations"] == [*before, new[1]]


async def test_labels_and_annotations_follow_kubectl_except_marks_and_keys_of_other_clients(ground: Ground) -> None:
    """Additions, changes and removals are carried down; marks and keys that other clients set stay unchanged."""
    await running(ground, "described")
    site, path = ground.sites[A], ground.pod_path("described")
    await site.patch(path, {"metadata": {"labels": {"team": "below"}, "annotations": {"site": "below"}}})
    await succeeded(
        ground, "label", "pod", "described", "team=above", "stage=one", f"{OWNER}=forged", f"{VIRTUAL_POD}=no"
    )
    await succeeded(ground, "annotate", "pod", "described", "site=above", "note=one", f"{TRIPPED_LABELS}=forged")
    found = await below(ground, "described", lambda one: one["metadata"]["annotations"].get("note") == "one")
    marks = {OWNER: ground.owner.mark, VIRTUAL_POD: "true"}
    assert found["metadata"]["labels"] == {**marks, "stage": "one", "team": "below"}
    assert found["metadata"]["annotations"]["site"] == "below"
    assert found["metadata"]["annotations"][TRIPPED_LABELS] == "{}"
    await succeeded(ground, "label", "pod", "described", "--overwrite", "stage=two", "team-")
    await succeeded(ground, "annotate", "pod", "described", "note-", "site-")
    found = await below(ground, "described", lambda one: "note" not in one["metadata"]["annotations"])
    found = await below(ground, "described", lambda one: one["metadata"]["labels"].get("stage") == "two")
    assert found["metadata"]["labels"]["team"] == "below"
    assert found["metadata"]["annotations"]["site"] == "below"


async def test_values_that_lower_admission_adds_are_kept(ground: Ground) -> None:
    """An annotation and limits of a LimitRange belong to the lower cluster, and no upper change removes them."""
    await running(ground, "first", lower=B)
    site = ground.sites[B]
    limits = {"limits": [{"type": "Container", "default": {"memory": "64Mi"}}]}
    await site.create(ground.path("limitranges"), {"metadata": {"name": "defaults"}, "spec": limits})
    await running(ground, "limited", {"containers": [{"name": "main", "image": "app:1"}]}, B)
    seen = await site.read(ground.pod_path("limited"))
    assert "kubernetes.io/limit-ranger" in seen["metadata"]["annotations"]
    await succeeded(ground, "label", "pod", "limited", "stage=one")
    await succeeded(ground, "set", "image", "pod/limited", "main=app:2")
    await below(ground, "limited", lambda one: image_of(one) == "app:2", B)
    found = await below(ground, "limited", lambda one: "stage" in one["metadata"]["labels"], B)
    await ground.calm()
    assert "kubernetes.io/limit-ranger" in found["metadata"]["annotations"]
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"memory": "64Mi"}
    await site.delete(ground.path("limitranges", "defaults"))


async def reports_sizes(ground: Ground, name: str) -> None:
    """Write resources into the lower pod's status as a kubelet does.

    Without them the API refuses a resize.
    """
    seen = await ground.sites[A].read(ground.pod_path(name))
    (status,) = seen["status"]["containerStatuses"]
    sized = {**status, **SIZE, "allocatedResources": SIZE["resources"]["requests"]}
    await ground.sites[A].patch(f"{ground.pod_path(name)}/status", {"status": {"containerStatuses": [sized]}})
    await ground.upper.until(
        ground.pod_path(name), lambda one: one["status"]["containerStatuses"][0].get("resources") == SIZE["resources"]
    )


async def test_a_resize_reaches_the_lower_pod_and_its_result_the_upper_pod(ground: Ground) -> None:
    """`kubectl patch --subresource resize` sets the resources, and the upper pod gets the kubelet's result."""
    await running(ground, "resized")
    await reports_sizes(ground, "resized")
    more = {"requests": {"cpu": "150m", "memory": "32Mi"}, "limits": {"cpu": "300m", "memory": "64Mi"}}
    patch = orjson.dumps({"spec": {"containers": [{"name": "main", "resources": more}]}}).decode()
    await succeeded(ground, "patch", "pod", "resized", "--subresource", "resize", "-p", patch)
    found = await below(ground, "resized", lambda one: one["spec"]["containers"][0]["resources"] == more)
    pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no room"}
    path = f"{ground.pod_path('resized')}/status"
    await ground.sites[A].patch(path, {"status": {"conditions": [pending]}}, "strategic")
    above = await ground.upper.until(ground.pod_path("resized"), lambda one: is_true(one, "PodResizePending"))
    assert condition_of(above, "PodResizePending")["reason"] == "Deferred"
    done = {**found["status"]["containerStatuses"][0], "resources": more, "allocatedResources": more["requests"]}
    gone = {"conditions": [{"type": "PodResizePending", "$patch": "delete"}], "containerStatuses": [done]}
    await ground.sites[A].patch(path, {"status": gone}, "strategic")
    above = await ground.upper.until(
        ground.pod_path("resized"), lambda one: one["status"]["containerStatuses"][0].get("resources") == more
    )
    assert above["status"]["containerStatuses"][0]["allocatedResources"] == more["requests"]
    assert condition_of(above, "PodResizePending") == {}


async def test_debug_containers_are_added_to_the_lower_pod(ground: Ground) -> None:
    """`kubectl debug` without attaching adds two containers one after the other, and their statuses are mirrored."""
    await running(ground, "debugged")
    site, path = ground.sites[A], ground.pod_path("debugged")
    for name in ("one", "two"):
        await succeeded(ground, "debug", "debugged", "--image=tools:1", f"--container={name}", "--attach=false", "-q")
        found = await below(ground, "debugged", lambda one, name=name: _debugs(one)[-1:] == [name])
    assert _debugs(found) == ["one", "two"]
    said = await site.until(path, lambda one: _ended(one) == ["one", "two"])
    statuses = said["status"]["ephemeralContainerStatuses"]
    await ground.upper.until(path, lambda one: one["status"].get("ephemeralContainerStatuses") == statuses)
    await observed(ground, "debugged")


def _debugs(pod: Manifest) -> list[str]:
    return [one["name"] for one in pod["spec"].get("ephemeralContainers") or ()]


def _ended(pod: Manifest) -> list[str]:
    """Return the names of the debug containers that have terminated.

    Containers without a command terminate at once and keep that status.
    """
    statuses = pod["status"].get("ephemeralContainerStatuses") or ()
    return [one["name"] for one in statuses if "terminated" in one["state"]]


async def test_a_change_that_the_lower_cluster_refuses_is_reported_and_retried(ground: Ground) -> None:
    """The pod runs on with a condition and an Event, and other changes are applied.

    Once the policy is removed and an allowed image is set, the condition is removed.
    """
    made = await running(ground, "refused")
    site, policy = ground.sites[A], f"e2e-{ground.mark}"
    await site.create(POLICIES, {"metadata": {"name": policy}, "spec": forbidding("bad:1", ground.namespace)})
    bound = {"policyName": policy, "validationActions": ["Deny"]}
    await site.create(BINDINGS, {"metadata": {"name": policy}, "spec": bound})
    try:
        await in_force(ground, policy)
        await ground.note()
        await succeeded(ground, "set", "image", "pod/refused", "main=bad:1")
        above = await ground.upper.until(ground.pod_path("refused"), lambda one: condition_of(one, SYNCED))
        assert "bad:1 is forbidden" in condition_of(above, SYNCED)["message"]
        assert not _is_observed(above)
        assert is_ready(above)
        assert "bad:1 is forbidden" in await ground.told(made, "ChangeNotApplied")
        await succeeded(ground, "debug", "refused", "--image=tools:1", "--container=d", "--attach=false", "-q")
        await succeeded(ground, "label", "pod", "refused", "stage=one")
        await below(ground, "refused", _debugs)
        await below(ground, "refused", lambda one: "stage" in one["metadata"]["labels"])
        refusals = [one for one, code in await ground.attempts() if code >= 400]
        assert 1 <= len(refusals) < 12
    finally:
        await site.delete(f"{BINDINGS}/{policy}")
        await site.delete(f"{POLICIES}/{policy}")
    await succeeded(ground, "set", "image", "pod/refused", "main=app:3")
    await below(ground, "refused", lambda one: image_of(one) == "app:3")
    above = await observed(ground, "refused")
    above = await ground.upper.until(ground.pod_path("refused"), lambda one: not condition_of(one, SYNCED))
    assert is_ready(above)


def forbidding(image: str, namespace: str) -> Manifest:
    """Return the spec of a policy that forbids an image in a namespace."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    match = {"resourceRules": [rule], "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    denial = {
        "expression": f"object.spec.containers.all(one, one.image != '{image}')",
        "message": f"{image} is forbidden",
    }
    return {"matchConstraints": match, "validations": [denial], "failurePolicy": "Fail"}


async def in_force(ground: Ground, policy: str) -> None:
    """Wait until the lower cluster's apiserver enforces a policy, by trying a change that it forbids."""
    probe = {"metadata": {"name": policy}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}}
    await ground.sites[A].create(ground.path("pods"), probe)
    path, bad = f"{ground.pod_path(policy)}?dryRun=All", {"spec": {"containers": [{"name": "main", "image": "bad:1"}]}}
    async with asyncio.timeout(20):
        while not await _is_forbidden(ground, path, bad):
            pass
    await ground.sites[A].delete(ground.pod_path(policy), 0)


async def _is_forbidden(ground: Ground, path: str, change: Manifest) -> bool:
    try:
        await ground.sites[A].patch(path, change, "strategic")
    except Refused as error:
        return "is forbidden" in str(error)
    return False


async def test_a_restarted_engine_repeats_no_change(ground: Ground) -> None:
    """After all these changes, a new engine finds every pod up to date."""
    await ground.calm()
    await ground.stop()
    await ground.note()
    await ground.start()
    await ground.calm()
    assert await ground.repeated() == []
    noted = await ground.sites[A].read(ground.pod_path("imaged"))
    assert NOTE in noted["metadata"]["annotations"]


async def test_a_plan_lists_each_changed_field_and_the_engine_makes_exactly_these_writes(ground: Ground) -> None:
    """The engine then makes two patches of the pod, one of its ephemeral containers, and one resize."""
    await running(ground, "planned")
    await reports_sizes(ground, "planned")
    await ground.calm()
    await ground.stop()
    more = {"requests": {"cpu": "150m", "memory": "32Mi"}, "limits": {"cpu": "300m", "memory": "64Mi"}}
    size = {"spec": {"containers": [{"name": "main", "resources": more}]}}
    await succeeded(ground, "set", "image", "pod/planned", "main=app:2")
    await succeeded(ground, "label", "pod", "planned", "stage=one")
    await succeeded(ground, "debug", "planned", "--image=tools:1", "--container=d", "--attach=false", "-q")
    await succeeded(ground, "patch", "pod", "planned", "--subresource", "resize", "-p", orjson.dumps(size).decode())
    command = [sys.executable, "-m", "tensile", "plan", "-f", str(ground.save()), "-o", "json"]
    planned, text = await asyncio.gather(ran(command), ran([*command[:-1], "text"]))
    assert planned.code == 2, planned.err
    (change,) = [one for one in orjson.loads(planned.out)["changes"] if one["name"] == "planned"]
    assert (change["cluster"], change["action"], change["kind"]) == (A, "update", "Pod")
    for field in (
        "spec.containers[main].image",
        "spec.containers[main].resources.limits.cpu",
        "spec.ephemeralContainers[d]",
        "metadata.labels.stage",
    ):
        assert field in text.out
    assert "written-" not in text.out
    await ground.note()
    await ground.start()
    await below(ground, "planned", lambda one: image_of(one) == "app:2" and _debugs(one) == ["d"])
    await observed(ground, "planned")
    await ground.calm()
    ways = [one.subresource for one in await ground.writes() if (one.cluster, one.name) == (A, "planned")]
    assert sorted(ways) == ["", "", "ephemeralcontainers", "resize"]
    assert (await ran(command)).code == 0
