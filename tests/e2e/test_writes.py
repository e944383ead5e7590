"""Tests of how many writes the engine makes in a pod's life, counted in the clusters' audit logs."""

from typing import Any

import pytest
from enginekit import QUIET, A, EngineHarness, Write
from sitekit import is_ready, is_true

from bench.kit import audit

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def lifetime(harness: EngineHarness, name: str, spec: dict[str, Any], **meta: Any) -> tuple[list[Write], int]:
    """Run a pod through three changes of its lower status and delete it.

    Returns the engine's writes, and how often the lower status changed: a slow node starts a pod in two steps.
    """
    await harness.wait_idle()
    await harness.mark_audit_logs()
    since = audit.position(harness.sites[A].audit_log)
    await harness.bind(name, spec, **meta)
    path, site = harness.pod_path(name), harness.sites[A]
    await harness.upper.until(path, is_ready)
    for kind in ("PodResizePending", "PodResizeInProgress"):
        patch = {"status": {"conditions": [{"type": kind, "status": "True"}]}}
        await site.patch(f"{path}/status", patch, "strategic")
        await harness.upper.until(path, lambda one, kind=kind: is_true(one, kind))
    await harness.upper.delete(path)
    if "finalizers" in meta:
        await harness.upper.until(path, lambda one: one["status"]["phase"] in ("Failed", "Succeeded"))
        await harness.upper.patch(path, {"metadata": {"finalizers": None}})
    await harness.upper.gone(path)
    await harness.wait_idle()
    written = [one for one, _ in await harness.attempts(without=QUIET) if one.name in (name, "")]
    about = [record["objectRef"] for record in audit.writes(audit.read(site.audit_log, since), "")]
    return written, sum(one.get("name") == name and one.get("subresource") == "status" for one in about)


@pytest.mark.parametrize(
    ("name", "spec", "meta", "most"),
    [
        ("plain", {}, {}, 6),
        ("counted", {"restartPolicy": "Never"}, {}, 7),
        ("held", {"restartPolicy": "Never"}, {"finalizers": ["e2e.example.com/hold"]}, 7),
    ],
)
async def test_a_pods_life_needs_few_writes(
    harness: EngineHarness, name: str, spec: dict[str, Any], meta: dict[str, Any], most: int
) -> None:
    """Six writes suffice, including refused ones, and seven if another client waits for the pod's final phase."""
    written, changes = await lifetime(harness, name, spec, **meta)
    kinds = [(one.cluster, one.verb, one.resource, one.subresource) for one in written]
    assert (A, "create", "pods", "") in kinds
    assert ("upper", "delete", "pods", "") in kinds
    assert len(written) <= most + max(changes - 3, 0), kinds
