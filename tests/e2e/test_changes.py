"""Tests of changes to running pods by kubectl in the upper cluster.

Allowed changes are applied to the lower pod, and changes that the lower cluster refuses are reported on the upper one.
"""

import asyncio
import sys
from typing import Any

import orjson
import pytest
from enginekit import A, B, EngineHarness, run_command
from sitekit import Manifest, Refused, condition_of, is_ready, is_true

from tensile.names import OWNER, SYNCED, TRIPPED_LABELS, VIRTUAL_POD
from tensile.names import WRITTEN_IMAGES as NOTE

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SIZE = {"resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}}
MAIN = {"name": "main", "image": "app:1", **SIZE}
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


async def running(
    harness: EngineHarness, name: str, spec: Manifest | None = None, lower: str = A, **meta: Any
) -> Manifest:
    """Run a pod with one container that has requests and limits, and return the upper pod."""
    await harness.bind(name, {"containers": [MAIN], **(spec or {})}, lower, **meta)
    return await harness.upper.until(harness.pod_path(name), is_ready)


async def wait_for_lower_pod(harness: EngineHarness, name: str, holds: Any, lower: str = A) -> Manifest:
    """Wait until a condition holds for the lower pod, and return it."""
    return await harness.sites[lower].until(harness.pod_path(name), lambda one: one and holds(one))


async def observed(harness: EngineHarness, name: str) -> Manifest:
    """Wait until the upper pod's observedGeneration is its generation, and return the pod."""
    return await harness.upper.until(harness.pod_path(name), _is_observed)


def _is_observed(pod: Manifest) -> bool:
    return bool(pod["status"].get("observedGeneration") == pod["metadata"]["generation"])


def image_of(pod: Manifest) -> str:
    """Return the image of the first container."""
    return str(pod["spec"]["containers"][0]["image"])


async def succeeded(harness: EngineHarness, *arguments: str) -> str:
    """Run kubectl in the upper cluster, assert that it succeeds, and return its output."""
    done = await harness.kubectl(*arguments)
    assert done.code == 0, done.err
    return done.out


async def test_an_image_that_is_set_in_the_upper_cluster_is_set_in_the_lower(harness: EngineHarness) -> None:
    """After `kubectl set image` on a bare pod, the same lower pod has the image, and observedGeneration follows."""
    await running(harness, "imaged")
    before = await harness.sites[A].read(harness.pod_path("imaged"))
    await succeeded(harness, "set", "image", "pod/imaged", "main=app:2")
    after = await wait_for_lower_pod(harness, "imaged", lambda one: image_of(one) == "app:2")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await observed(harness, "imaged"))["metadata"]["generation"] >= 2


async def test_an_image_that_is_edited_in_the_lower_cluster_is_reverted(harness: EngineHarness) -> None:
    """A user's edit is not the lower cluster's admission, so the upper spec prevails."""
    await running(harness, "edited")
    edit = {"spec": {"containers": [{"name": MAIN["name"], "image": "theirs:1"}]}}
    await harness.sites[A].patch(harness.pod_path("edited"), edit, "strategic")
    await wait_for_lower_pod(harness, "edited", lambda one: image_of(one) == "app:1")


async def test_a_deadline_that_is_set_in_the_upper_cluster_is_set_in_the_lower(harness: EngineHarness) -> None:
    """An earlier deadline is carried down too; Kubernetes refuses any other change of a deadline."""
    await running(harness, "timed")
    for seconds in (600, 300):
        patch = orjson.dumps({"spec": {"activeDeadlineSeconds": seconds}}).decode()
        await succeeded(harness, "patch", "pod", "timed", "-p", patch)
        await wait_for_lower_pod(
            harness, "timed", lambda one, seconds=seconds: one["spec"]["activeDeadlineSeconds"] == seconds
        )


async def test_tolerations_that_are_added_to_the_upper_pod_are_added_to_the_lower_pod(harness: EngineHarness) -> None:
    """The toleration of the virtual node's taint is not copied, and the lower pod keeps all that it has."""
    upper_object = await running(harness, "tolerant")
    before = (await harness.sites[A].read(harness.pod_path("tolerant")))["spec"]["tolerations"]
    new = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}, {"key": "gpu", "operator": "Exists"}]
    patch = orjson.dumps({"spec": {"tolerations": [*upper_object["spec"]["tolerations"], *new]}}).decode()
    await succeeded(harness, "patch", "pod", "tolerant", "--type=merge", "-p", patch)
    after = await wait_for_lower_pod(harness, "tolerant", lambda one: len(one["spec"]["tolerations"]) > len(before))
    assert after["spec"]["tolerations"] == [*before, new[1]]


async def test_labels_and_annotations_follow_kubectl_except_marks_and_keys_of_other_clients(
    harness: EngineHarness,
) -> None:
    """Additions, changes and removals are carried down; marks and keys that other clients set stay unchanged."""
    await running(harness, "described")
    site, path = harness.sites[A], harness.pod_path("described")
    await site.patch(path, {"metadata": {"labels": {"team": "below"}, "annotations": {"site": "below"}}})
    await succeeded(
        harness, "label", "pod", "described", "team=above", "stage=one", f"{OWNER}=forged", f"{VIRTUAL_POD}=no"
    )
    await succeeded(harness, "annotate", "pod", "described", "site=above", "note=one", f"{TRIPPED_LABELS}=forged")
    found = await wait_for_lower_pod(
        harness, "described", lambda one: one["metadata"]["annotations"].get("note") == "one"
    )
    marks = {OWNER: harness.owner.mark, VIRTUAL_POD: "true"}
    assert found["metadata"]["labels"] == {**marks, "stage": "one", "team": "below"}
    assert found["metadata"]["annotations"]["site"] == "below"
    assert found["metadata"]["annotations"][TRIPPED_LABELS] == "{}"
    await succeeded(harness, "label", "pod", "described", "--overwrite", "stage=two", "team-")
    await succeeded(harness, "annotate", "pod", "described", "note-", "site-")
    found = await wait_for_lower_pod(harness, "described", lambda one: "note" not in one["metadata"]["annotations"])
    found = await wait_for_lower_pod(harness, "described", lambda one: one["metadata"]["labels"].get("stage") == "two")
    assert found["metadata"]["labels"]["team"] == "below"
    assert found["metadata"]["annotations"]["site"] == "below"


async def test_values_that_lower_admission_adds_are_kept(harness: EngineHarness) -> None:
    """An annotation and limits of a LimitRange belong to the lower cluster, and no upper change removes them."""
    await running(harness, "first", lower=B)
    site = harness.sites[B]
    limits = {"limits": [{"type": "Container", "default": {"memory": "64Mi"}}]}
    await site.create(harness.path("limitranges"), {"metadata": {"name": "defaults"}, "spec": limits})
    await running(harness, "limited", {"containers": [{"name": "main", "image": "app:1"}]}, B)
    seen = await site.read(harness.pod_path("limited"))
    assert "kubernetes.io/limit-ranger" in seen["metadata"]["annotations"]
    await succeeded(harness, "label", "pod", "limited", "stage=one")
    await succeeded(harness, "set", "image", "pod/limited", "main=app:2")
    await wait_for_lower_pod(harness, "limited", lambda one: image_of(one) == "app:2", B)
    found = await wait_for_lower_pod(harness, "limited", lambda one: "stage" in one["metadata"]["labels"], B)
    await harness.wait_idle()
    assert "kubernetes.io/limit-ranger" in found["metadata"]["annotations"]
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"memory": "64Mi"}
    await site.delete(harness.path("limitranges", "defaults"))


async def reports_sizes(harness: EngineHarness, name: str) -> None:
    """Write resources into the lower pod's status as a kubelet does.

    Without them the API refuses a resize.
    """
    seen = await harness.sites[A].read(harness.pod_path(name))
    (status,) = seen["status"]["containerStatuses"]
    sized = {**status, **SIZE, "allocatedResources": SIZE["resources"]["requests"]}
    await harness.sites[A].patch(f"{harness.pod_path(name)}/status", {"status": {"containerStatuses": [sized]}})
    await harness.upper.until(
        harness.pod_path(name), lambda one: one["status"]["containerStatuses"][0].get("resources") == SIZE["resources"]
    )


async def test_a_resize_reaches_the_lower_pod_and_its_result_the_upper_pod(harness: EngineHarness) -> None:
    """`kubectl patch --subresource resize` sets the resources, and the upper pod gets the kubelet's result."""
    await running(harness, "resized")
    await reports_sizes(harness, "resized")
    more = {"requests": {"cpu": "150m", "memory": "32Mi"}, "limits": {"cpu": "300m", "memory": "64Mi"}}
    patch = orjson.dumps({"spec": {"containers": [{"name": "main", "resources": more}]}}).decode()
    await succeeded(harness, "patch", "pod", "resized", "--subresource", "resize", "-p", patch)
    found = await wait_for_lower_pod(harness, "resized", lambda one: one["spec"]["containers"][0]["resources"] == more)
    pending = {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no room"}
    path = f"{harness.pod_path('resized')}/status"
    await harness.sites[A].patch(path, {"status": {"conditions": [pending]}}, "strategic")
    upper_object = await harness.upper.until(harness.pod_path("resized"), lambda one: is_true(one, "PodResizePending"))
    assert condition_of(upper_object, "PodResizePending")["reason"] == "Deferred"
    done = {**found["status"]["containerStatuses"][0], "resources": more, "allocatedResources": more["requests"]}
    gone = {"conditions": [{"type": "PodResizePending", "$patch": "delete"}], "containerStatuses": [done]}
    await harness.sites[A].patch(path, {"status": gone}, "strategic")
    upper_object = await harness.upper.until(
        harness.pod_path("resized"), lambda one: one["status"]["containerStatuses"][0].get("resources") == more
    )
    assert upper_object["status"]["containerStatuses"][0]["allocatedResources"] == more["requests"]
    assert condition_of(upper_object, "PodResizePending") == {}


async def test_debug_containers_are_added_to_the_lower_pod(harness: EngineHarness) -> None:
    """`kubectl debug` without attaching adds two containers one after the other, and their statuses are mirrored."""
    await running(harness, "debugged")
    site, path = harness.sites[A], harness.pod_path("debugged")
    for name in ("one", "two"):
        await succeeded(harness, "debug", "debugged", "--image=tools:1", f"--container={name}", "--attach=false", "-q")
        found = await wait_for_lower_pod(harness, "debugged", lambda one, name=name: _debugs(one)[-1:] == [name])
    assert _debugs(found) == ["one", "two"]
    upper_pod = await site.until(path, lambda one: _ended(one) == ["one", "two"])
    statuses = upper_pod["status"]["ephemeralContainerStatuses"]
    await harness.upper.until(path, lambda one: one["status"].get("ephemeralContainerStatuses") == statuses)
    await observed(harness, "debugged")


def _debugs(pod: Manifest) -> list[str]:
    return [one["name"] for one in pod["spec"].get("ephemeralContainers") or ()]


def _ended(pod: Manifest) -> list[str]:
    """Return the names of the debug containers that have terminated.

    Containers without a command terminate at once and keep that status.
    """
    statuses = pod["status"].get("ephemeralContainerStatuses") or ()
    return [one["name"] for one in statuses if "terminated" in one["state"]]


async def test_a_change_that_the_lower_cluster_refuses_is_reported_and_retried(harness: EngineHarness) -> None:
    """The pod runs on with a condition and an Event, and other changes are applied.

    Once the policy is removed and an allowed image is set, the condition is removed.
    """
    made = await running(harness, "refused")
    site, policy = harness.sites[A], f"e2e-{harness.mark}"
    await site.create(POLICIES, {"metadata": {"name": policy}, "spec": forbidding("bad:1", harness.namespace)})
    bound = {"policyName": policy, "validationActions": ["Deny"]}
    await site.create(BINDINGS, {"metadata": {"name": policy}, "spec": bound})
    try:
        await in_force(harness, policy)
        await harness.mark_audit_logs()
        await succeeded(harness, "set", "image", "pod/refused", "main=bad:1")
        upper_object = await harness.upper.until(harness.pod_path("refused"), lambda one: condition_of(one, SYNCED))
        assert "bad:1 is forbidden" in condition_of(upper_object, SYNCED)["message"]
        assert not _is_observed(upper_object)
        assert is_ready(upper_object)
        assert "bad:1 is forbidden" in await harness.wait_for_event(made, "ChangeNotApplied")
        await succeeded(harness, "debug", "refused", "--image=tools:1", "--container=d", "--attach=false", "-q")
        await succeeded(harness, "label", "pod", "refused", "stage=one")
        await wait_for_lower_pod(harness, "refused", _debugs)
        await wait_for_lower_pod(harness, "refused", lambda one: "stage" in one["metadata"]["labels"])
        refusals = [one for one, code in await harness.attempts() if code >= 400]
        assert 1 <= len(refusals) < 12
    finally:
        await site.delete(f"{BINDINGS}/{policy}")
        await site.delete(f"{POLICIES}/{policy}")
    await succeeded(harness, "set", "image", "pod/refused", "main=app:3")
    await wait_for_lower_pod(harness, "refused", lambda one: image_of(one) == "app:3")
    upper_object = await observed(harness, "refused")
    upper_object = await harness.upper.until(harness.pod_path("refused"), lambda one: not condition_of(one, SYNCED))
    assert is_ready(upper_object)


def forbidding(image: str, namespace: str) -> Manifest:
    """Return the spec of a policy that forbids an image in a namespace."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    match = {"resourceRules": [rule], "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    denial = {
        "expression": f"object.spec.containers.all(one, one.image != '{image}')",
        "message": f"{image} is forbidden",
    }
    return {"matchConstraints": match, "validations": [denial], "failurePolicy": "Fail"}


async def in_force(harness: EngineHarness, policy: str) -> None:
    """Wait until the lower cluster's apiserver enforces a policy, by trying a change that it forbids."""
    probe = {"metadata": {"name": policy}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}}
    await harness.sites[A].create(harness.path("pods"), probe)
    path, bad = f"{harness.pod_path(policy)}?dryRun=All", {"spec": {"containers": [{"name": "main", "image": "bad:1"}]}}
    async with asyncio.timeout(20):
        while not await _is_forbidden(harness, path, bad):
            pass
    await harness.sites[A].delete(harness.pod_path(policy), 0)


async def _is_forbidden(harness: EngineHarness, path: str, change: Manifest) -> bool:
    try:
        await harness.sites[A].patch(path, change, "strategic")
    except Refused as error:
        return "is forbidden" in str(error)
    return False


async def test_a_restarted_engine_repeats_no_change(harness: EngineHarness) -> None:
    """After all these changes, a new engine finds every pod up to date."""
    await harness.wait_idle()
    await harness.stop()
    await harness.mark_audit_logs()
    await harness.start()
    await harness.wait_idle()
    assert await harness.unexpected_attempts() == []
    noted = await harness.sites[A].read(harness.pod_path("imaged"))
    assert NOTE in noted["metadata"]["annotations"]


async def test_a_plan_lists_each_changed_field_and_the_engine_makes_exactly_these_writes(
    harness: EngineHarness,
) -> None:
    """The engine then makes two patches of the pod, one of its ephemeral containers, and one resize."""
    await running(harness, "planned")
    await reports_sizes(harness, "planned")
    await harness.wait_idle()
    await harness.stop()
    more = {"requests": {"cpu": "150m", "memory": "32Mi"}, "limits": {"cpu": "300m", "memory": "64Mi"}}
    size = {"spec": {"containers": [{"name": "main", "resources": more}]}}
    await succeeded(harness, "set", "image", "pod/planned", "main=app:2")
    await succeeded(harness, "label", "pod", "planned", "stage=one")
    await succeeded(harness, "debug", "planned", "--image=tools:1", "--container=d", "--attach=false", "-q")
    await succeeded(harness, "patch", "pod", "planned", "--subresource", "resize", "-p", orjson.dumps(size).decode())
    command = [sys.executable, "-m", "tensile", "plan", "-f", str(harness.save()), "-o", "json"]
    planned, text = await asyncio.gather(run_command(command), run_command([*command[:-1], "text"]))
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
    await harness.mark_audit_logs()
    await harness.start()
    await wait_for_lower_pod(harness, "planned", lambda one: image_of(one) == "app:2" and _debugs(one) == ["d"])
    await observed(harness, "planned")
    await harness.wait_idle()
    ways = [one.subresource for one in await harness.writes() if (one.cluster, one.name) == (A, "planned")]
    assert sorted(ways) == ["", "", "ephemeralcontainers", "resize"]
    assert (await run_command(command)).code == 0
