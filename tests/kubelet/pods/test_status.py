"""What an upper pod's status says of its lower pod: the table of status fields, and the properties that hold always."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import EARLIER, NOW, below, conditions, exited, patched, pod, running, said
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


def test_a_running_pod_comes_up() -> None:
    """Phase, addresses, times, containers and readiness of a first report."""
    lower = below(
        {
            "phase": "Running",
            **IP,
            "hostIP": "192.168.0.1",
            "hostIPs": [{"ip": "192.168.0.1"}],
            "startTime": EARLIER,
            "qosClass": "Guaranteed",
            "containerStatuses": [running()],
            "conditions": [said("Ready"), said("ContainersReady"), said("PodScheduled")],
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
def test_what_is_immutable_or_the_lowers_own_stays_below(field: str) -> None:
    """A field with the verdict DROP never comes up."""
    assert field not in reflect(pod(), below({"phase": "Running", field: "anything"}))


@pytest.mark.parametrize("field", sorted(with_verdict(STATUS, FieldVerdict.KEEP) - {"hostIP", "hostIPs"}))
def test_what_is_kept_comes_up_and_goes(field: str) -> None:
    """A field with the verdict KEEP is as below, also when it is not there any more."""
    value = {"requests": {"cpu": "1"}} if field == "resources" else {"cpu": "1"} if "Res" in field else "text"
    assert reflect(pod(), below({"phase": "Pending", field: value}))[field] == value
    assert reflect(pod(status={field: value}), below({"phase": "Pending"}))[field] is None


def test_unknown_status_fields_stay_below() -> None:
    """A newer lower cluster may have fields that are immutable above, or not the upper's business."""
    assert "brandNew" not in reflect(pod(), below({"phase": "Running", "brandNew": 1}))


def test_nothing_is_written_when_nothing_differs() -> None:
    """The same status on both sides needs no write."""
    status = {"phase": "Running", "containerStatuses": [running()], "conditions": [said("Ready")], **IP}
    assert upper_status(pod(status=status), below(status), generation=1) is None


def test_a_fresh_lower_pod_is_no_news() -> None:
    """Pending on both sides, whether or not the lower scheduler has already found a node."""
    upper = pod(status={"phase": "Pending", "conditions": [said("PodScheduled")]})
    assert upper_status(upper, below({"phase": "Pending"}), generation=1) is None
    assert upper_status(upper, below({"phase": "Pending", "conditions": [said("PodScheduled")]}), generation=1) is None


def test_any_other_new_condition_is_news() -> None:
    """That a pod is initialized, say, is written even when nothing else differs."""
    upper = pod(status={"phase": "Pending"})
    lower = below({"phase": "Pending", "conditions": [said("Initialized")]})
    assert "Initialized" in conditions(upper_status(upper, lower, generation=1))


def test_that_a_pod_came_bound_is_no_news() -> None:
    """PodScheduled that no scheduler wrote travels with the first status that has something to say."""
    assert upper_status(pod(status={"phase": "Pending"}), below({"phase": "Pending"}), generation=1) is None
    assert conditions(upper_status(pod(status={}), below({"phase": "Running"}), generation=1)).keys() == {
        "PodScheduled"
    }


def test_that_the_lower_scheduler_found_a_node_travels_with_other_news() -> None:
    """It is written with the next difference, and not left out for ever."""
    lower = below({"phase": "Running", "conditions": [said("PodScheduled")]})
    assert conditions({"status": reflect(pod(), lower)})[SCHEDULED]["status"] == "True"


def test_that_the_lower_scheduler_found_no_node_is_news() -> None:
    """Unschedulable below is what a user looks for; and so is that it is over."""
    lower = below({"phase": "Pending", "conditions": [said("PodScheduled", "False", reason="Unschedulable")]})
    upper = pod(status={"phase": "Pending"})
    body = upper_status(upper, lower, generation=1)
    assert conditions(body)[SCHEDULED]["reason"] == "Unschedulable"
    over = below({"phase": "Pending", "conditions": [said("PodScheduled")]})
    assert conditions(upper_status(patched(upper, body), over, generation=1))[SCHEDULED]["status"] == "True"


@pytest.mark.parametrize(
    ("number", "expected"),
    [(None, 7), (5, 7), (6, 7), (4, None)],
    ids=["kubelet that does not count", "newest", "ahead of the cache", "behind"],
)
def test_an_observation_is_about_the_upper_generation(number: int | None, expected: int | None) -> None:
    """The lower pod counts its own generations; an observation of its newest is one of the upper's."""
    lower = below({"phase": "Running"} | ({} if number is None else {"observedGeneration": number}), generation=5)
    found = upper_status(pod(status={"observedGeneration": 1}), lower, generation=7)["status"]
    assert found.get("observedGeneration") == expected


def test_a_first_observed_generation_is_no_news_and_a_newer_one_is() -> None:
    """A pod whose spec never changed causes no write for a number; one that did is reported as seen."""
    lower = below({"phase": "Pending"})
    assert upper_status(pod(status={"phase": "Pending"}), lower, generation=1) is None
    known = {"phase": "Pending", "conditions": [said("PodScheduled")]}
    assert reflect(pod(status={**known, "observedGeneration": 1}), lower, 2) == {"observedGeneration": 2}
    assert reflect(pod(status={**known, "observedGeneration": 3}), lower, 2) == {}


def test_a_kubelet_that_is_behind_has_observed_nothing_new() -> None:
    """An image change that the lower kubelet has not seen yet is not reported as observed."""
    lower = below({"phase": "Running", "observedGeneration": 1}, generation=2)
    assert "observedGeneration" not in reflect(pod(status={"observedGeneration": 1}), lower, 2)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("other", ["Pending", "Running", "Failed", "Succeeded", "Unknown", None])
def test_a_terminal_phase_is_never_left(phase: str, other: str | None) -> None:
    """Whatever the lower pod says afterwards, nothing of it comes up."""
    lower = below({"phase": other, "containerStatuses": [running()], "conditions": [said("Ready")]})
    body = upper_status(pod(status={"phase": phase}), lower, generation=1)
    assert (body is None) is (phase != other)
    assert body is None or "phase" not in body["status"]


def test_a_phase_that_is_not_said_is_pending() -> None:
    """A lower pod without status has not started."""
    assert reflect(pod(status={}), below({}))["phase"] == "Pending"


def test_a_pod_that_ended_loses_its_address() -> None:
    """Another pod may have it by now; the node's address stays."""
    status = {**IP, "hostIP": "192.168.0.1", "hostIPs": [{"ip": "192.168.0.1"}]}
    found = reflect(pod(status={**status, "phase": "Running"}), below({**status, "phase": "Succeeded"}))
    assert (found["podIP"], found["podIPs"]) == (None, None)
    assert found.keys().isdisjoint({"hostIP", "hostIPs"})


def test_a_pod_on_its_nodes_network_keeps_the_nodes_address() -> None:
    """It is the node's for good, so nothing else gets it."""
    upper = pod({"hostNetwork": True}, {"phase": "Running", **IP})
    assert reflect(upper, below({"phase": "Failed", **IP})).keys().isdisjoint({"podIP", "podIPs"})


@pytest.mark.parametrize(("one", "many"), [("podIP", "podIPs"), ("hostIP", "hostIPs")])
def test_addresses_come_in_pairs(one: str, many: str) -> None:
    """The single field and the head of the list are the same, or the apiserver refuses the status."""
    two = [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]
    assert reflect(pod(), below({"phase": "Running", one: "10.0.0.1", many: two}))[many] == two
    assert reflect(pod(), below({"phase": "Running", many: two}))[one] == "10.0.0.1"
    assert reflect(pod(), below({"phase": "Running", one: "10.0.0.1"}))[many] == [{"ip": "10.0.0.1"}]
    assert reflect(pod(), below({"phase": "Running", one: "10.0.0.9", many: two}))[many] == [{"ip": "10.0.0.9"}]


def test_a_changed_address_replaces_the_old_one() -> None:
    """Not beside it: both of one family would be refused."""
    lower = below({"phase": "Running", "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]})
    assert reflect(pod(status={"phase": "Running", **IP}), lower)["podIPs"] == [
        {"$patch": "replace"},
        {"ip": "10.0.0.2"},
    ]


def test_why_a_pod_was_pending_is_taken_away_by_its_first_status() -> None:
    """Reason, message and Mirrored=False of a pod without a lower pod do not outlive its coming."""
    upper = pod(
        status={
            "phase": "Pending",
            "reason": "NameConflict",
            "message": "m",
            "conditions": [
                said("tensile-kube.io/Mirrored", "False"),
                said("PodReadyToStartContainers", "False"),
                said("PodScheduled"),
            ],
        }
    )
    found = reflect(upper, below({"phase": "Pending"}))
    assert (found["reason"], found["message"]) == (None, None)
    assert {one["type"]: one["$patch"] for one in found["conditions"]} == {
        "tensile-kube.io/Mirrored": "delete",
        "PodReadyToStartContainers": "delete",
    }


def test_a_disruption_below_is_told_at_once() -> None:
    """Ready=False and DisruptionTarget the moment the lower pod has a deletionTimestamp that the upper has not."""
    status = {"phase": "Running", "conditions": [said("Ready")]}
    found = conditions(
        upper_status(pod(status=status), below(status, deletionTimestamp="2026-03-01T12:00:00Z"), generation=1)
    )
    assert found["Ready"]["status"] == "False"
    assert found["DisruptionTarget"]["status"] == "True"


def test_the_last_status_of_a_deleted_pod_is_terminal() -> None:
    """Without a lower pod: Failed, not ready, no address, containers that ran are ended."""
    upper = pod(status={"phase": "Running", **IP, "conditions": [said("Ready")], "containerStatuses": [running()]})
    found = ending(upper, None, NOW)["status"]
    assert (found["phase"], found["podIP"], found["podIPs"]) == ("Failed", None, None)
    assert found["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    told = conditions({"status": found})
    assert (told["Ready"]["status"], told["Ready"]["lastTransitionTime"]) == ("False", NOW)
    assert told["Ready"]["reason"] == "PodFailed"
    assert "before" in found["containerStatuses"][0]["state"]["terminated"]["message"]
    assert told["ContainersReady"]["status"] == "False"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_last_status_is_the_lower_pods_where_that_ended(phase: str) -> None:
    """Its phase, containers and the conditions it turned false by itself."""
    code = 0 if phase == "Succeeded" else 3
    no = said("Ready", "False", reason="PodCompleted")
    lower = below({"phase": phase, "containerStatuses": [exited(code=code)], "conditions": [no], **IP})
    found = ending(pod(status={"phase": "Running", "containerStatuses": [running()]}), lower, NOW)["status"]
    assert found["phase"] == phase
    assert found["containerStatuses"] == [exited(code=code)]
    assert conditions({"status": found})["Ready"]["lastTransitionTime"] == EARLIER
    assert found.keys().isdisjoint({"podIP", "podIPs"})


def test_a_lower_pod_that_had_not_ended_ends_as_failed() -> None:
    """What it said last comes up all the same, and what ran is ended."""
    lower = below({"phase": "Running", "startTime": EARLIER, "containerStatuses": [running()]})
    found = ending(pod(status={"phase": "Pending"}), lower, NOW)["status"]
    assert (found["phase"], found["startTime"]) == ("Failed", EARLIER)
    assert found["containerStatuses"][0]["state"].keys() == {"terminated"}


def test_the_last_conditions_come_up_without_a_generation() -> None:
    """All but the number: nobody says any more which upper generation it would be about."""
    one = said("Initialized", observedGeneration=1)
    told = conditions(ending(pod(status={}), below({"phase": "Failed", "conditions": [one]}), NOW))
    assert told["Initialized"] == {"type": "Initialized", "status": "True", "lastTransitionTime": EARLIER}


def test_the_end_that_both_know_is_told_as_the_lower_pod_tells_it() -> None:
    """Details that came after the phase are not lost."""
    lower = below({"phase": "Failed", "containerStatuses": [exited(code=3)]})
    found = ending(pod(status={"phase": "Failed", "containerStatuses": [running()]}), lower, NOW)["status"]
    assert found["containerStatuses"] == [exited(code=3)]


def test_an_upper_pod_that_had_ended_keeps_its_phase() -> None:
    """Succeeded stays Succeeded, whatever became of the lower pod."""
    upper = pod(status={"phase": "Succeeded", "containerStatuses": [exited()]})
    for lower in (None, below({"phase": "Failed", "reason": "Evicted"}), below({"phase": "Running"})):
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
    """Draw a pod status that an apiserver could hold."""
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
    """Lay addresses over a status, in pairs as the apiserver keeps them."""
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
    lambda status, meta: below(status or {}, generation=2, **meta),
    statuses(LOWER_KINDS, ["main", "injected"]),
    DELETIONS,
)


@given(UPPERS, LOWERS, st.integers(1, 3))
def test_a_written_status_leaves_nothing_to_write(upper: dict, lower: dict, generation: int) -> None:
    """Applying the patch and asking again gives None: no write without a change, ever."""
    body = upper_status(upper, lower, generation=generation)
    if body is not None:
        assert upper_status(patched(upper, body), lower, generation=generation) is None


@given(UPPERS, LOWERS, st.integers(1, 3))
def test_a_written_status_is_one_that_the_apiserver_takes(upper: dict, lower: dict, generation: int) -> None:
    """Its validation, in short: address pairs of two families, same qosClass, no container from the dead."""
    body = upper_status(upper, lower, generation=generation)
    if body is not None:
        assert_valid(upper, patched(upper, body))


@given(UPPERS, LOWERS, st.integers(1, 3))
def test_what_others_say_above_is_untouched(upper: dict, lower: dict, generation: int) -> None:
    """The scheduler's and the gates' conditions are as before; no generation goes back."""
    body = upper_status(upper, lower, generation=generation)
    before, after = conditions(upper), conditions(patched(upper, body) if body else upper)
    assert before.get("example.com/gate") == after.get("example.com/gate")
    assert "PodScheduled" not in before or before["PodScheduled"] == after["PodScheduled"]
    known = (upper["status"] or {}).get("observedGeneration", 0)
    assert ((body or {}).get("status") or {}).get("observedGeneration", known) >= known


@given(UPPERS, st.none() | LOWERS)
def test_an_ending_leaves_nothing_to_write(upper: dict, lower: dict | None) -> None:
    """The last status is written once: terminal, not ready, no container running, and valid."""
    body = ending(upper, lower, NOW)
    after = patched(upper, body) if body else upper
    assert ending(after, lower, NOW) is None
    assert after["status"]["phase"] in TERMINAL
    assert conditions(after)["Ready"]["status"] == "False"
    for field in CONTAINERS_OF:
        assert not any("running" in one["state"] for one in after["status"].get(field, []))
    assert_valid(upper, after)


def assert_valid(upper: dict, after: dict) -> None:
    """Check what the apiserver checks of a status update."""
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
    """Check that every container that had ended, and is still reported, has ended."""
    for field in CONTAINERS_OF:
        ended = {one["name"] for one in old.get(field, []) if "terminated" in one["state"]}
        assert all("terminated" in one["state"] for one in new.get(field, []) if one["name"] in ended)


def test_reading_leaves_both_pods_as_they_were() -> None:
    """Both are the caches'."""
    status: dict[str, Any] = {"phase": "Running", "conditions": [said("Ready")], "containerStatuses": [running()], **IP}
    upper, lower = pod(status={"phase": "Pending"}), below(status)
    before = repr((upper, lower))
    upper_status(upper, lower, generation=1)
    ending(upper, lower, NOW)
    assert repr((upper, lower)) == before


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_what_is_not_in_step_is_said_with_the_status(phase: str) -> None:
    """The condition comes and goes as it is given, whatever else there is to say."""
    behind = said(SYNCED, "False", reason="Forbidden")
    lower, upper = below({"phase": phase}), pod(status={"phase": phase})
    body = upper_status(upper, lower, generation=1, in_step=behind)
    assert conditions(body)[SYNCED]["reason"] == "Forbidden"
    assert body is not None
    gone = upper_status(patched(upper, body), lower, generation=1)
    assert conditions(gone)[SYNCED] == {"type": SYNCED, "$patch": "delete"}


def test_an_unknown_generation_is_not_reported() -> None:
    """While a change is on its way, the last generation that was below is what counts."""
    upper = pod(status={"phase": "Pending", "observedGeneration": 2})
    found = reflect(upper, below({"phase": "Running", "conditions": [said("Ready", observedGeneration=1)]}), 0)
    assert "observedGeneration" not in found
    assert "observedGeneration" not in conditions({"status": found})["Ready"]


def test_the_containers_of_a_node_that_was_deleted_have_ended() -> None:
    """Kubernetes sets such a pod to Failed, and no kubelet reports the end of its containers any more."""
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    found = reflect(pod({}, {}), below({"phase": "Failed", "conditions": [gone], "containerStatuses": [running()]}))
    (container,) = found["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert container["ready"] is False
