"""Tests of a scheduler's configuration with an extender: the sandbox's, and the manifest for users."""

from pathlib import Path
from typing import Any

import yaml

from tensile.policy.extender.server import SCHEDULER
from tensile.sandbox import credentials, flags
from tensile.sandbox.state import Layout

MANIFEST = Path(__file__).resolve().parent.parent.parent / "manifests" / "scheduler-extender.yaml"
PLACES = ("urlPrefix", "tlsConfig")
"""The fields that differ between clusters."""


def configured(layout: Layout) -> dict[str, Any]:
    """Return the configuration for port 7."""
    found: dict[str, Any] = yaml.safe_load(flags.configuration(layout, 7))
    return found


def test_the_configuration_replaces_flags_that_it_overrides(upper: Layout) -> None:
    """With a configuration, kube-scheduler reads the kubeconfig, client limits and leader election from it."""
    found = configured(upper)
    assert found["clientConnection"]["kubeconfig"] == str(upper.pki / "kube-scheduler.kubeconfig")
    assert (
        f"--kube-api-qps={found['clientConnection']['qps']}",
        f"--kube-api-burst={found['clientConnection']['burst']}",
    ) == flags.FAST_CLIENT
    assert found["leaderElection"] == {"leaderElect": False}


def test_the_scheduler_and_the_extender_authenticate_each_other(upper: Layout) -> None:
    """The files are the upper cluster's, the address is loopback, and the user is one that the extender accepts."""
    (extender,) = configured(upper)["extenders"]
    assert extender["urlPrefix"] == "https://127.0.0.1:7"
    assert Path(extender["tlsConfig"]["caFile"]).name == "ca.crt"
    stems = {Path(extender["tlsConfig"][field]).stem for field in ("certFile", "keyFile")}
    assert stems == {credentials.SCHEDULER}
    assert credentials.COMPONENT_USERS[credentials.SCHEDULER][0] == SCHEDULER


def test_the_manifest_equals_the_sandboxs_configuration(upper: Layout) -> None:
    """Except for addresses and paths, tests cover the configuration that users start from."""
    (theirs,), (ours,) = yaml.safe_load(MANIFEST.read_text())["extenders"], configured(upper)["extenders"]
    for extender, trust in ((theirs, "insecure"), (ours, "caFile")):
        assert set(extender.pop("tlsConfig")) == {trust, "certFile", "keyFile"}
        assert extender.pop("urlPrefix").startswith("https://")
    assert theirs == ours
    assert (ours["ignorable"], ours["nodeCacheCapable"], "managedResources" in ours) == (True, True, False)
