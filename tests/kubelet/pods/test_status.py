"""Tests of the upper pod's status: the table of status fields, and properties that hold for all pods."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import EARLIER, NOW, conditions, exited, make_lower_pod, patched, pod, running, stored_condition
from podviewkit import ending, upper_status

from tensile.kubelet.pods.projection import STATUS, FieldVerdict, with_verdict
from tensile.kubelet.pods.status import CONTAINERS_OF
from tensile.names import SYNCED
from tensile.reconcile.pods.index import TERMINAL

SCHEDULED = "tensile-kube.io/LowerScheduled"
IP = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}


def reflect(upper: dict, lower: dict, generation: int = 1) -> dict:
    """Return the status part of the patch, {} for none."""
    body = upper_status(upper, lower, generation=generation)
    return {} if body is None else body["status"]


def test_the_status_of_a_running_pod_is_mirrored() -> None:
    """The first report contains phase, addresses, times, containers and conditions."""
    lower = make_lower_pod(
        {
            "phase": "Running",
            **IP,
            "hostIP": "192.168.0.1",
            "hostIPs": [{"ip": "192.168.0.1"}],
            "startTime": EARLIER,
            "qosClass": "Guaranteed",
            "containerStatuses": [running()],
            "conditions": [
                stored_condition("Ready"),
                stored_condition("ContainersReady"),
                stored_condition("PodScheduled"),
            ],
        }
    )
    found = reflect(pod(status={"phase": "Pending", "qosClass": "BestEffort"}), lower)
    kinds = {one.pop("type") for one in found.pop("conditions")}
    assert kinds == {"Ready", "ContainersReady", "PodScheduled", SCHEDULED}
    assert found == {
        "phase": "Running",
        **IP,
        "hostIP": "192.168.0.1",
        "hostIPs": [{"ip": "192.168.0.1"}],
        "startTime": EARLIER,
        "containerStatuses": [running()],
        "observedGeneration": 1,
    }


@pytest.mark.parametrize("field", sorted(with_verdict(STATUS, FieldVerdict.DROP)))
def test_immutable_fields_and_fields_about_the_lower_are_not_mirrored(field: str) -> None:
    """A field with the verdict DROP never gets to the upper pod."""
    assert field not in reflect(pod(), make_lower_pod({"phase": "Running", field: "anything"}))


@pytest.mark.parametrize("field", sorted(with_verdict(STATUS, FieldVerdict.KEEP) - {"hostIP", "hostIPs"}))
def test_kept_fields_are_mirrored_and_removed(field: str) -> None:
    """A field with the verdict KEEP equals the lower pod's, also when the lower pod no longer has it."""
    value = {"requests": {"cpu": "1"}} if field == "resources" else {"cpu": "1"} if "Res" in field else "text"
    assert reflect(pod(), make_lower_pod({"phase": "Pending", field: value}))[field] == value
    assert reflect(pod(status={field: value}), make_lower_pod({"phase": "Pending"}))[field] is None


def test_unknown_status_fields_are_not_mirrored() -> None:
    """A newer lower cluster may have fields that are immutable in the upper cluster, or irrelevant there."""
    assert "brandNew" not in reflect(pod(), make_lower_pod({"phase": "Running", "brandNew": 1}))


def test_an_equal_status_is_not_written() -> None:
    """The same status on both sides needs no write."""
    status = {"phase": "Running", "containerStatuses": [running()], "conditions": [stored_condition("Ready")], **IP}
    assert upper_status(pod(status=status), make_lower_pod(status), generation=1) is None


def test_the_status_of_a_new_lower_pod_is_not_written() -> None:
    """Both pods are Pending, whether or not the lower scheduler has found a node."""
    upper = pod(status={"phase": "Pending", "conditions": [stored_condition("PodScheduled")]})
    assert upper_status(upper, make_lower_pod({"phase": "Pending"}), generation=1) is None
    assert (
        upper_status(
            upper, make_lower_pod({"phase": "Pending", "conditions": [stored_condition("PodScheduled")]}), generation=1
        )
        is None
    )


def test_any_other_new_condition_is_written() -> None:
    """A condition such as Initialized is written even if nothing else differs."""
    upper = pod(status={"phase": "Pending"})
    lower = make_lower_pod({"phase": "Pending", "conditions": [stored_condition("Initialized")]})
    assert "Initialized" in conditions(upper_status(upper, lower, generation=1))


def test_the_condition_of_a_pod_created_bound_is_written_with_the_next_change() -> None:
    """PodScheduled that no scheduler set causes no write of its own."""
    assert upper_status(pod(status={"phase": "Pending"}), make_lower_pod({"phase": "Pending"}), generation=1) is None
    assert conditions(upper_status(pod(status={}), make_lower_pod({"phase": "Running"}), generation=1)).keys() == {
        "PodScheduled"
    }


def test_a_successful_lower_scheduling_is_written_with_the_next_change() -> None:
    """It causes no write of its own, but is not omitted later."""
    lower = make_lower_pod({"phase": "Running", "conditions": [stored_condition("PodScheduled")]})
    assert conditions({"status": reflect(pod(), lower)})[SCHEDULED]["status"] == "True"


def test_a_failed_lower_scheduling_and_its_end_are_written() -> None:
    """A user needs to know that the pod is Unschedulable in the lower, and when that has ended."""
    lower = make_lower_pod(
        {"phase": "Pending", "conditions": [stored_condition("PodScheduled", "False", reason="Unschedulable")]}
    )
    upper = pod(status={"phase": "Pending"})
    body = upper_status(upper, lower, generation=1)
    assert conditions(body)[SCHEDULED]["reason"] == "Unschedulable"
    over = make_lower_pod({"phase": "Pending", "conditions": [stored_condition("PodScheduled")]})
    assert conditions(upper_status(patched(upper, body), over, generation=1))[SCHEDULED]["status"] == "True"


@pytest.mark.parametrize(
    ("number", "expected"),
    [(None, 7), (5, 7), (6, 7), (4, None)],
    ids=["kubelet without generations", "newest", "newer than the cache", "behind"],
)
def test_an_observed_generation_is_translated_to_the_upper_generation(number: int | None, expected: int | None) -> None:
    """The lower pod has its own generations, so only an observation of its newest one counts."""
    lower = make_lower_pod(
        {"phase": "Running"} | ({} if number is None else {"observedGeneration": number}), generation=5
    )
    found = upper_status(pod(status={"observedGeneration": 1}), lower, generation=7)["status"]
    assert found.get("observedGeneration") == expected


def test_a_newer_observed_generation_is_written_and_a_first_one_is_not() -> None:
    """A pod whose spec never changed needs no write for the number alone."""
    lower = make_lower_pod({"phase": "Pending"})
    assert upper_status(pod(status={"phase": "Pending"}), lower, generation=1) is None
    known = {"phase": "Pending", "conditions": [stored_condition("PodScheduled")]}
    assert reflect(pod(status={**known, "observedGeneration": 1}), lower, 2) == {"observedGeneration": 2}
    assert reflect(pod(status={**known, "observedGeneration": 3}), lower, 2) == {}


def test_a_lower_kubelet_that_is_behind_does_not_advance_the_observed_generation() -> None:
    """An image change that the lower kubelet has not observed is not reported as observed."""
    lower = make_lower_pod({"phase": "Running", "observedGeneration": 1}, generation=2)
    assert "observedGeneration" not in reflect(pod(status={"observedGeneration": 1}), lower, 2)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("other", ["Pending", "Running", "Failed", "Succeeded", "Unknown", None])
def test_a_terminal_phase_is_never_changed(phase: str, other: str | None) -> None:
    """Nothing of a lower pod in another phase is mirrored afterwards."""
    lower = make_lower_pod(
        {"phase": other, "containerStatuses": [running()], "conditions": [stored_condition("Ready")]}
    )
    body = upper_status(pod(status={"phase": phase}), lower, generation=1)
    assert (body is None) is (phase != other)
    assert body is None or "phase" not in body["status"]


def test_a_missing_lower_phase_is_pending() -> None:
    """A lower pod without a status has not started."""
    assert reflect(pod(status={}), make_lower_pod({}))["phase"] == "Pending"


def test_a_pod_that_ended_loses_its_pod_ips() -> None:
    """Another pod may have the address already; the addresses of the node are kept."""
    status = {**IP, "hostIP": "192.168.0.1", "hostIPs": [{"ip": "192.168.0.1"}]}
    found = reflect(pod(status={**status, "phase": "Running"}), make_lower_pod({**status, "phase": "Succeeded"}))
    assert (found["podIP"], found["podIPs"]) == (None, None)
    assert found.keys().isdisjoint({"hostIP", "hostIPs"})


def test_a_host_network_pod_keeps_its_address_when_it_ends() -> None:
    """Its address belongs to the node, so no other pod gets it."""
    upper = pod({"hostNetwork": True}, {"phase": "Running", **IP})
    assert reflect(upper, make_lower_pod({"phase": "Failed", **IP})).keys().isdisjoint({"podIP", "podIPs"})


@pytest.mark.parametrize(("one", "many"), [("podIP", "podIPs"), ("hostIP", "hostIPs")])
def test_single_and_listed_addresses_are_consistent(one: str, many: str) -> None:
    """The apiserver rejects a status whose single field differs from the first listed address."""
    two = [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]
    assert reflect(pod(), make_lower_pod({"phase": "Running", one: "10.0.0.1", many: two}))[many] == two
    assert reflect(pod(), make_lower_pod({"phase": "Running", many: two}))[one] == "10.0.0.1"
    assert reflect(pod(), make_lower_pod({"phase": "Running", one: "10.0.0.1"}))[many] == [{"ip": "10.0.0.1"}]
    assert reflect(pod(), make_lower_pod({"phase": "Running", one: "10.0.0.9", many: two}))[many] == [
        {"ip": "10.0.0.9"}
    ]


def test_a_changed_address_replaces_the_old_one() -> None:
    """If the list kept both addresses of one family, the apiserver would reject it."""
    lower = make_lower_pod({"phase": "Running", "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]})
    assert reflect(pod(status={"phase": "Running", **IP}), lower)["podIPs"] == [
        {"$patch": "replace"},
        {"ip": "10.0.0.2"},
    ]


def test_the_first_lower_status_removes_the_reason_for_pending() -> None:
    """Reason, message and conditions of a pod without a lower pod are removed."""
    upper = pod(
        status={
            "phase": "Pending",
            "reason": "NameConflict",
            "message": "m",
            "conditions": [
                stored_condition("tensile-kube.io/Mirrored", "False"),
                stored_condition("PodReadyToStartContainers", "False"),
                stored_condition("PodScheduled"),
            ],
        }
    )
    found = reflect(upper, make_lower_pod({"phase": "Pending"}))
    assert (found["reason"], found["message"]) == (None, None)
    assert {one["type"]: one["$patch"] for one in found["conditions"]} == {
        "tensile-kube.io/Mirrored": "delete",
        "PodReadyToStartContainers": "delete",
    }


def test_a_deletion_of_the_lower_pod_by_another_client_is_reported_immediately() -> None:
    """Ready becomes False and DisruptionTarget True as soon as only the lower pod has a deletionTimestamp."""
    status = {"phase": "Running", "conditions": [stored_condition("Ready")]}
    found = conditions(
        upper_status(pod(status=status), make_lower_pod(status, deletionTimestamp="2026-03-01T12:00:00Z"), generation=1)
    )
    assert found["Ready"]["status"] == "False"
    assert found["DisruptionTarget"]["status"] == "True"


def test_the_last_status_of_a_deleted_pod_is_terminal() -> None:
    """Without a lower pod it is Failed and not ready, without addresses and with ended containers."""
    upper = pod(
        status={"phase": "Running", **IP, "conditions": [stored_condition("Ready")], "containerStatuses": [running()]}
    )
    found = ending(upper, None, NOW)["status"]
    assert (found["phase"], found["podIP"], found["podIPs"]) == ("Failed", None, None)
    assert found["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    by_type = conditions({"status": found})
    assert (by_type["Ready"]["status"], by_type["Ready"]["lastTransitionTime"]) == ("False", NOW)
    assert by_type["Ready"]["reason"] == "PodFailed"
    assert "before" in found["containerStatuses"][0]["state"]["terminated"]["message"]
    assert by_type["ContainersReady"]["status"] == "False"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_last_status_is_that_of_a_lower_pod_that_ended(phase: str) -> None:
    """Its phase, containers and conditions are kept."""
    code = 0 if phase == "Succeeded" else 3
    no = stored_condition("Ready", "False", reason="PodCompleted")
    lower = make_lower_pod({"phase": phase, "containerStatuses": [exited(code=code)], "conditions": [no], **IP})
    found = ending(pod(status={"phase": "Running", "containerStatuses": [running()]}), lower, NOW)["status"]
    assert found["phase"] == phase
    assert found["containerStatuses"] == [exited(code=code)]
    assert conditions({"status": found})["Ready"]["lastTransitionTime"] == EARLIER
    assert found.keys().isdisjoint({"podIP", "podIPs"})


def test_a_deleted_lower_pod_that_had_not_ended_is_failed() -> None:
    """Its last status is mirrored, and its running containers are marked terminated."""
    lower = make_lower_pod({"phase": "Running", "startTime": EARLIER, "containerStatuses": [running()]})
    found = ending(pod(status={"phase": "Pending"}), lower, NOW)["status"]
    assert (found["phase"], found["startTime"]) == ("Failed", EARLIER)
    assert found["containerStatuses"][0]["state"].keys() == {"terminated"}


def test_the_last_conditions_have_no_observed_generation() -> None:
    """The upper generation that they describe is not known any more."""
    one = stored_condition("Initialized", observedGeneration=1)
    by_type = conditions(ending(pod(status={}), make_lower_pod({"phase": "Failed", "conditions": [one]}), NOW))
    assert by_type["Initialized"] == {"type": "Initialized", "status": "True", "lastTransitionTime": EARLIER}


def test_later_details_of_an_ended_lower_pod_are_mirrored() -> None:
    """An upper pod in the same terminal phase gets container states that arrived after the phase."""
    lower = make_lower_pod({"phase": "Failed", "containerStatuses": [exited(code=3)]})
    found = ending(pod(status={"phase": "Failed", "containerStatuses": [running()]}), lower, NOW)["status"]
    assert found["containerStatuses"] == [exited(code=3)]


def test_an_upper_pod_that_ended_keeps_its_phase_in_its_last_status() -> None:
    """A lower pod in another phase, or none, changes at most conditions."""
    upper = pod(status={"phase": "Succeeded", "containerStatuses": [exited()]})
    for lower in (None, make_lower_pod({"phase": "Failed", "reason": "Evicted"}), make_lower_pod({"phase": "Running"})):
        found = (ending(upper, lower, NOW) or {"status": {}})["status"]
        assert found.keys() <= {"conditions"}


LOWER_KINDS = ["Ready", "ContainersReady", "Initialized", "PodScheduled", "PodResizePending", "DisruptionTarget"]
UPPER_KINDS = [*LOWER_KINDS, SCHEDULED, "tensile-kube.io/Mirrored", "example.com/gate"]
TIMES = st.sampled_from([EARLIER, "2026-03-01T11:30:00Z"])
ADDRESSES = st.sampled_from([[], ["10.0.0.1"], ["10.0.0.2"], ["10.0.0.1", "fd00::1"]])


def described(kinds: list[str]) -> st.SearchStrategy:
    """Draw conditions of different types."""
    one = st.fixed_dictionaries(
        {"type": st.sampled_from(kinds), "status": st.sampled_from(["True", "False"]), "lastTransitionTime": TIMES},
        optional={"reason": st.just("R"), "observedGeneration": st.integers(1, 3), "lastProbeTime": st.none()},
    )
    return st.lists(one, max_size=5, unique_by=lambda condition: condition["type"])


def contained(names: list[str]) -> st.SearchStrategy:
    """Draw container statuses of different names."""
    one = st.builds(
        lambda name, state: {"name": name, "ready": "running" in state, "state": state},
        st.sampled_from(names),
        st.sampled_from(
            [{"running": {}}, {"waiting": {}}, {"terminated": {"exitCode": 0}}, {"terminated": {"exitCode": 1}}]
        ),
    )
    return st.lists(one, max_size=3, unique_by=lambda status: status["name"])


def statuses(kinds: list[str], names: list[str]) -> st.SearchStrategy:
    """Draw a valid pod status."""
    fields = {
        "conditions": described(kinds),
        "containerStatuses": contained(names),
        "initContainerStatuses": contained(["init", *names]),
        "observedGeneration": st.integers(1, 3),
        "reason": st.just("Evicted"),
        "startTime": TIMES,
        "allocatedResources": st.dictionaries(st.sampled_from(["cpu", "memory"]), st.just("1"), min_size=1),
        "qosClass": st.sampled_from(["BestEffort", "Guaranteed"]),
    }
    phases = {"phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])}
    addressed = st.builds(with_addresses, st.fixed_dictionaries(phases, optional=fields), ADDRESSES, ADDRESSES)
    return st.none() | addressed


def with_addresses(status: dict, pod_ips: list[str], host_ips: list[str]) -> dict:
    """Add addresses to a status, in pairs as the apiserver keeps them."""
    for single, many, ips in (("podIP", "podIPs", pod_ips), ("hostIP", "hostIPs", host_ips)):
        if ips:
            status = {**status, single: ips[0], many: [{"ip": ip} for ip in ips]}
    return status


SPECS = st.fixed_dictionaries(
    {"restartPolicy": st.sampled_from(["Always", "OnFailure", "Never"])},
    optional={
        "readinessGates": st.just([{"conditionType": "example.com/gate"}]),
        "hostNetwork": st.booleans(),
        "initContainers": st.just([{"name": "init"}]),
    },
)
DELETIONS = st.sampled_from([{}, {"deletionTimestamp": "2026-03-01T12:00:30Z", "deletionGracePeriodSeconds": 30}])
UPPERS = st.builds(
    lambda spec, status, meta: pod(spec, status or {}, generation=3, **meta),
    SPECS,
    statuses(UPPER_KINDS, ["main"]),
    DELETIONS,
)
LOWERS = st.builds(
    lambda status, meta: make_lower_pod(status or {}, generation=2, **meta),
    statuses(LOWER_KINDS, ["main", "injected"]),
    DELETIONS,
)


@given(UPPERS, LOWERS, st.integers(1, 3))
def test_no_second_write_follows_a_status_write(upper: dict, lower: dict, generation: int) -> None:
    """The status after the patch needs no other patch, for any pair of pods."""
    body = upper_status(upper, lower, generation=generation)
    if body is not None:
        assert upper_status(patched(upper, body), lower, generation=generation) is None


@given(UPPERS, LOWERS, st.integers(1, 3))
def test_a_written_status_is_valid_for_the_apiserver(upper: dict, lower: dict, generation: int) -> None:
    """Address pairs have two families, qosClass is unchanged, and no ended container runs again."""
    body = upper_status(upper, lower, generation=generation)
    if body is not None:
        assert_valid(upper, patched(upper, body))


@given(UPPERS, LOWERS, st.integers(1, 3))
def test_conditions_of_other_writers_and_newer_generations_are_kept(upper: dict, lower: dict, generation: int) -> None:
    """The conditions of scheduler and gates are unchanged, and the observed generation never decreases."""
    body = upper_status(upper, lower, generation=generation)
    before, after = conditions(upper), conditions(patched(upper, body) if body else upper)
    assert before.get("example.com/gate") == after.get("example.com/gate")
    assert "PodScheduled" not in before or before["PodScheduled"] == after["PodScheduled"]
    known = (upper["status"] or {}).get("observedGeneration", 0)
    assert ((body or {}).get("status") or {}).get("observedGeneration", known) >= known


@given(UPPERS, st.none() | LOWERS)
def test_no_second_write_follows_a_last_status(upper: dict, lower: dict | None) -> None:
    """It is terminal, not ready, without running containers, and valid."""
    body = ending(upper, lower, NOW)
    after = patched(upper, body) if body else upper
    assert ending(after, lower, NOW) is None
    assert after["status"]["phase"] in TERMINAL
    assert conditions(after)["Ready"]["status"] == "False"
    for field in CONTAINERS_OF:
        assert not any("running" in one["state"] for one in after["status"].get(field, []))
    assert_valid(upper, after)


def assert_valid(upper: dict, after: dict) -> None:
    """Check what the apiserver validates in a status update."""
    old, new = upper["status"], after["status"]
    assert new.get("qosClass") == old.get("qosClass")
    assert old.get("phase") not in TERMINAL or new["phase"] == old["phase"]
    for single, many in (("podIP", "podIPs"), ("hostIP", "hostIPs")):
        ips = [one["ip"] for one in new.get(many) or []]
        assert ips[:1] == [ip for ip in [new.get(single)] if ip]
        assert len({":" in ip for ip in ips}) == len(ips)
    if upper["spec"]["restartPolicy"] == "Never":
        assert_no_resurrection(old, new)


def assert_no_resurrection(old: dict, new: dict) -> None:
    """Check that every container that had ended, and is still reported, is terminated."""
    for field in CONTAINERS_OF:
        ended = {one["name"] for one in old.get(field, []) if "terminated" in one["state"]}
        assert all("terminated" in one["state"] for one in new.get(field, []) if one["name"] in ended)


def test_computing_a_status_modifies_neither_pod() -> None:
    """Both pods belong to the caches."""
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": [stored_condition("Ready")],
        "containerStatuses": [running()],
        **IP,
    }
    upper, lower = pod(status={"phase": "Pending"}), make_lower_pod(status)
    before = repr((upper, lower))
    upper_status(upper, lower, generation=1)
    ending(upper, lower, NOW)
    assert repr((upper, lower)) == before


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_a_given_sync_condition_is_written_and_removed(phase: str) -> None:
    """It is set if it is given and deleted if it is not, whatever else changed."""
    behind = stored_condition(SYNCED, "False", reason="Forbidden")
    lower, upper = make_lower_pod({"phase": phase}), pod(status={"phase": phase})
    body = upper_status(upper, lower, generation=1, synced=behind)
    assert conditions(body)[SYNCED]["reason"] == "Forbidden"
    assert body is not None
    gone = upper_status(patched(upper, body), lower, generation=1)
    assert conditions(gone)[SYNCED] == {"type": SYNCED, "$patch": "delete"}


def test_an_unknown_generation_is_not_reported() -> None:
    """While a change is being sent, the generation that the lower pod already has counts."""
    upper = pod(status={"phase": "Pending", "observedGeneration": 2})
    found = reflect(
        upper, make_lower_pod({"phase": "Running", "conditions": [stored_condition("Ready", observedGeneration=1)]}), 0
    )
    assert "observedGeneration" not in found
    assert "observedGeneration" not in conditions({"status": found})["Ready"]


def test_running_containers_of_a_pod_failed_by_pod_gc_are_terminated() -> None:
    """Kubernetes fails such a pod because its node was deleted, and no kubelet reports its containers."""
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    found = reflect(
        pod({}, {}), make_lower_pod({"phase": "Failed", "conditions": [gone], "containerStatuses": [running()]})
    )
    (container,) = found["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert container["ready"] is False
