"""Tests of the registration of the MutatingAdmissionPolicy on an in-memory cluster."""

from copy import deepcopy
from datetime import UTC, datetime

import pytest

from tensile.errors import AlreadyExists, Denied, NotFound, TensileError, Unreachable
from tensile.names import owner_of
from tensile.objects import NODE, UPPER, Manifest, Ref
from tensile.policy.webhook.admission_policy import (
    CHECK_SECONDS,
    CONFLICT_SECONDS,
    ERROR_SECONDS,
    PolicyRegistration,
    binding,
    binding_ref,
    policy,
    policy_ref,
)
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.topology import Topology, parse

OWNER = owner_of("11111111-upper", "demo")


def topology(lowers: str = "[{name: a, kubeconfig: a}]") -> Topology:
    """Return a topology with these lower clusters."""
    return parse(f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: {lowers}\n")


UNTAINTED = topology("[{name: a, kubeconfig: a, node: {taints: []}}]")
EMPTY = topology("[]")


class FailingUpperCluster(DryRunCluster):
    """An in-memory upper cluster whose next creates fail with these `errors`."""

    def __init__(self) -> None:
        super().__init__(UPPER, now=lambda: datetime.now(UTC))
        self.errors: list[Exception] = []

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create an object, or raise the next error."""
        if self.errors:
            raise self.errors.pop(0)
        return await super().create(ref, body)


@pytest.fixture
def upper() -> FailingUpperCluster:
    """An in-memory upper cluster."""
    return FailingUpperCluster()


async def looked(upper: FailingUpperCluster, *topologies: Topology) -> float:
    """Reconcile each of these topologies with one registration, and return the seconds until the next check."""
    registration = PolicyRegistration(upper, OWNER, "engine")
    rest = 0.0
    for one in topologies:
        registration.follow(one)
        rest = await registration.reconcile()
    return rest


def found(upper: FailingUpperCluster) -> list[Manifest | None]:
    """Return the stored policy and binding."""
    return [upper.find(ref.kind, "", ref.name) for ref in (policy_ref(EMPTY.name), binding_ref(EMPTY.name))]


def is_for_every_pod(upper: FailingUpperCluster) -> bool:
    """Report whether the stored policy applies to every pod without a node."""
    stored = found(upper)[0]
    assert stored is not None
    return "== '' && (true))" in str(stored["spec"]["matchConditions"][0]["expression"])


async def test_an_edit_of_the_taints_updates_the_existing_policy(upper: FailingUpperCluster) -> None:
    """Policy and binding keep their UIDs."""
    await looked(upper, topology())
    first = found(upper)
    assert await looked(upper, UNTAINTED) == CHECK_SECONDS
    assert is_for_every_pod(upper)
    assert [one and one["metadata"]["uid"] for one in found(upper)] == [one and one["metadata"]["uid"] for one in first]


async def test_fields_that_another_client_added_to_the_policy_are_removed(upper: FailingUpperCluster) -> None:
    """A foreign selector in a nested field would exclude pods."""
    await looked(upper, topology())
    ours = found(upper)[0]
    assert ours is not None
    narrowed = deepcopy(ours)
    narrowed["spec"]["matchConstraints"]["objectSelector"] = {"matchLabels": {"only": "these"}}
    upper.place(policy_ref(EMPTY.name).kind, narrowed)
    await looked(upper, topology())
    again = found(upper)[0]
    assert again is not None
    assert again["spec"] == ours["spec"]


async def test_the_policy_does_not_apply_to_every_pod_if_real_nodes_exist(upper: FailingUpperCluster) -> None:
    """A virtual node is recognized by its label, and every other node is real."""
    upper.place(NODE, {"metadata": {"name": "other", "labels": {"type": "virtual-kubelet"}}})
    await looked(upper, UNTAINTED)
    assert is_for_every_pod(upper)
    upper.place(NODE, {"metadata": {"name": "real"}})
    await looked(upper, UNTAINTED)
    assert not is_for_every_pod(upper)


async def test_the_policy_is_deleted_with_the_last_lower_cluster(upper: FailingUpperCluster) -> None:
    """Both the policy and its binding are deleted."""
    await looked(upper, topology(), EMPTY)
    assert found(upper) == [None, None]


async def test_a_policy_of_another_owner_is_never_changed_or_deleted(
    upper: FailingUpperCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it differs from the required one, the log has the remedy."""
    other = {**policy(topology(), None, all_virtual=False), "spec": {"failurePolicy": "Fail"}}
    upper.place(policy_ref(EMPTY.name).kind, other)
    assert await looked(upper, topology(), EMPTY) == CHECK_SECONDS
    kept = found(upper)[0]
    assert kept is not None
    assert kept["spec"] == {"failurePolicy": "Fail"}
    assert "belongs to another owner and differs from what this topology needs: delete" in capsys.readouterr().out


@pytest.mark.parametrize("all_virtual", [False, True])
async def test_a_manually_applied_policy_is_accepted(
    upper: FailingUpperCluster, *, all_virtual: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both forms are accepted, because the rendering command does not know the nodes of the cluster."""
    applied = (policy(UNTAINTED, None, all_virtual=all_virtual, own_namespace="engine"), binding(UNTAINTED, None))
    for ref, one in zip((policy_ref(EMPTY.name), binding_ref(EMPTY.name)), applied, strict=True):
        upper.place(ref.kind, one)
    assert await looked(upper, UNTAINTED) == CHECK_SECONDS
    assert [one and one["spec"] for one in found(upper)] == [one["spec"] for one in applied]
    assert "WARN" not in capsys.readouterr().out.upper()


@pytest.mark.parametrize(
    ("error", "rest", "message"),
    [
        (NotFound("no such resource", status=404), CHECK_SECONDS, "does not serve MutatingAdmissionPolicy"),
        (Denied("no right to that", status=403), ERROR_SECONDS, "no right to that"),
        (Unreachable("away"), ERROR_SECONDS, "away"),
    ],
)
async def test_a_failed_registration_is_logged_once_and_retried(
    upper: FailingUpperCluster, error: TensileError, rest: float, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The apiserver may not serve the kind, a right may be missing, or the cluster may be unreachable."""
    upper.errors = [error, error]
    assert await looked(upper, topology(), topology()) == rest
    assert found(upper)[0] is None
    assert capsys.readouterr().out.count(message) == 1
    assert await looked(upper, topology()) == CHECK_SECONDS
    assert None not in found(upper)


async def test_a_conflict_with_another_engine_is_retried_soon(upper: FailingUpperCluster) -> None:
    """The retry reads the object that the other engine created."""
    upper.errors = [AlreadyExists("there", status=409)]
    assert await looked(upper, topology()) == CONFLICT_SECONDS
