"""The configuration of a scheduler that asks an extender: the sandbox's, and the one that people start from."""

from pathlib import Path
from typing import Any

import yaml

from tensile.policy.extender.server import SCHEDULER
from tensile.sandbox import credentials, flags
from tensile.sandbox.state import Layout

MANIFEST = Path(__file__).resolve().parent.parent.parent / "manifests" / "scheduler-extender.yaml"
PLACES = ("urlPrefix", "tlsConfig")
"""What each cluster has of its own."""


def configured(layout: Layout) -> dict[str, Any]:
    """Return the configuration for port 7."""
    found: dict[str, Any] = yaml.safe_load(flags.configuration(layout, 7))
    return found


def test_it_replaces_the_flags_that_count_no_more(upper: Layout) -> None:
    """With a configuration the scheduler takes kubeconfig, limits and election from it."""
    found = configured(upper)
    assert found["clientConnection"]["kubeconfig"] == str(upper.pki / "kube-scheduler.kubeconfig")
    assert (
        f"--kube-api-qps={found['clientConnection']['qps']}",
        f"--kube-api-burst={found['clientConnection']['burst']}",
    ) == flags.FAST_CLIENT
    assert found["leaderElection"] == {"leaderElect": False}


def test_it_shows_who_asks_and_verifies_who_answers(upper: Layout) -> None:
    """With files of the upper cluster, on loopback, as a user that the extender hears."""
    (extender,) = configured(upper)["extenders"]
    assert extender["urlPrefix"] == "https://127.0.0.1:7"
    assert Path(extender["tlsConfig"]["caFile"]).name == "ca.crt"
    stems = {Path(extender["tlsConfig"][field]).stem for field in ("certFile", "keyFile")}
    assert stems == {credentials.SCHEDULER}
    assert credentials.COMPONENT_USERS[credentials.SCHEDULER][0] == SCHEDULER


def test_the_manifest_says_the_same(upper: Layout) -> None:
    """But for addresses and paths, what people start from is what is tried here."""
    (theirs,), (ours,) = yaml.safe_load(MANIFEST.read_text())["extenders"], configured(upper)["extenders"]
    for extender, trust in ((theirs, "insecure"), (ours, "caFile")):
        assert set(extender.pop("tlsConfig")) == {trust, "certFile", "keyFile"}
        assert extender.pop("urlPrefix").startswith("https://")
    assert theirs == ours
    assert (ours["ignorable"], ours["nodeCacheCapable"], "managedResources" in ours) == (True, True, False)
