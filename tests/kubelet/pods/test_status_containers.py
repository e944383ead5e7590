"""Container statuses: which come up, which the apiserver would refuse, and how unknown ends are told."""

from typing import Any

import pytest
from podkit import EARLIER, below, exited, pod, running
from podviewkit import present_containers, reflected_containers

from tensile.kubelet.pods.status import ended_containers

EMPTY = {"containerStatuses": [], "initContainerStatuses": [], "ephemeralContainerStatuses": []}


def shown(spec: dict, above: dict, lower: dict) -> dict:
    """Return what the lists should be above, given both statuses."""
    return reflected_containers(pod(spec, above), below(lower))


def after_exit(code: int, **spec: Any) -> str:
    """Report whether a container that exited is shown as "running" again when it is so below, or stays "terminated"."""
    found = shown(spec, {"containerStatuses": [exited(code=code)]}, {"containerStatuses": [running()]})
    (state,) = found["containerStatuses"][0]["state"]
    return str(state)


def container(**fields: Any) -> dict:
    """Make a spec whose one container has these fields."""
    return {"containers": [{"name": "main", **fields}]}


def test_statuses_come_up_whole() -> None:
    """Unknown fields of a status are its kubelet's business: nothing is taken out."""
    status = running(restartCount=3, allocatedResources={"cpu": "1"}, somethingNew={"a": 1})
    assert shown({}, {}, {"containerStatuses": [status]}) == EMPTY | {"containerStatuses": [status]}


def test_only_containers_of_the_upper_spec_come_up() -> None:
    """A sidecar that a webhook injected below is not a container of the upper pod."""
    spec = {"initContainers": [{"name": "init"}], "ephemeralContainers": [{"name": "debug"}]}
    lower = {
        "containerStatuses": [running(), running("injected")],
        "initContainerStatuses": [exited("init"), exited("main")],
        "ephemeralContainerStatuses": [running("debug"), running("init")],
    }
    assert shown(spec, {}, lower) == {
        "containerStatuses": [running()],
        "initContainerStatuses": [exited("init")],
        "ephemeralContainerStatuses": [running("debug")],
    }


def ruled(action: str, operator: str, *codes: int) -> dict:
    """Make the fields of a container with a rule about its exit code."""
    return {"restartPolicyRules": [{"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}]}


FORTY_TWO = container(restartPolicy="Never", **ruled("Restart", "In", 42))
ALL_BUT_42 = container(restartPolicy="Never", **ruled("Restart", "NotIn", 42))
RESTARTS_ALL = ruled("RestartAllContainers", "In", 1)


@pytest.mark.parametrize(
    ("spec", "code", "state"),
    [
        ({}, 0, "running"),
        ({"restartPolicy": "Always"}, 0, "running"),
        ({"restartPolicy": "Always"}, 1, "running"),
        ({"restartPolicy": "OnFailure"}, 1, "running"),
        ({"restartPolicy": "OnFailure"}, 0, "terminated"),
        ({"restartPolicy": "Never"}, 0, "terminated"),
        ({"restartPolicy": "Never"}, 1, "terminated"),
        ({"restartPolicy": "Never", **container(restartPolicy="Always")}, 0, "running"),
        ({"restartPolicy": "Never", **container(restartPolicy="OnFailure")}, 1, "running"),
        ({"restartPolicy": "Always", **container(restartPolicy="OnFailure")}, 0, "terminated"),
        ({"restartPolicy": "Always", **container(restartPolicy="Never")}, 1, "terminated"),
        (FORTY_TWO, 42, "running"),
        (FORTY_TWO, 1, "terminated"),
        (ALL_BUT_42, 1, "running"),
        (ALL_BUT_42, 42, "terminated"),
        ({"restartPolicy": "Never", "initContainers": [{"name": "init", **RESTARTS_ALL}]}, 0, "running"),
        ({"restartPolicy": "Never", **container(**RESTARTS_ALL)}, 0, "running"),
        (container(restartPolicy="Never", **ruled("Hibernate", "In", 0)), 0, "terminated"),
    ],
)
def test_a_container_comes_back_only_as_its_pod_allows(spec: dict, code: int, state: str) -> None:
    """Or the apiserver refuses the whole write.

    A container's own policy comes before its pod's. A rule that matches the exit code restarts it all the same, one
    that restarts all containers does so from any of them, and an action that nobody knows here cannot be counted on.
    """
    assert after_exit(code, **spec) == state


def test_a_container_that_had_not_ended_follows_the_lower_one() -> None:
    """Waiting, running, or without a state: whatever comes next is shown."""
    for before in ({"waiting": {}}, {"running": {}}, {}, None):
        above = {"containerStatuses": [{"name": "main", "state": before}]}
        found = shown({"restartPolicy": "Never"}, above, {"containerStatuses": [running()]})
        assert found["containerStatuses"] == [running()]


def test_an_ephemeral_container_never_comes_back() -> None:
    """Even in a pod that restarts all others."""
    spec = {"restartPolicy": "Always", "ephemeralContainers": [{"name": "debug"}]}
    above = {"ephemeralContainerStatuses": [exited("debug")]}
    found = shown(spec, above, {"ephemeralContainerStatuses": [running("debug")]})
    assert found["ephemeralContainerStatuses"] == [exited("debug")]


def test_a_newer_end_replaces_an_older_one() -> None:
    """Details of an end that are found out later come up."""
    found = shown(
        {"restartPolicy": "Never"},
        {"containerStatuses": [exited(code=137)]},
        {"containerStatuses": [exited(code=0)]},
    )
    assert found["containerStatuses"] == [exited(code=0)]


def test_containers_that_ran_on_are_told_as_a_kubelet_tells_lost_ones() -> None:
    """Exit code 137, reason ContainerStatusUnknown, with the id and start that are known."""
    found = ended_containers(EMPTY | {"containerStatuses": [running(containerID="x://1")]}, "why")
    assert found["containerStatuses"] == [
        {
            "name": "main",
            "ready": False,
            "started": False,
            "containerID": "x://1",
            "state": {
                "terminated": {
                    "exitCode": 137,
                    "reason": "ContainerStatusUnknown",
                    "message": "why",
                    "startedAt": EARLIER,
                    "containerID": "x://1",
                }
            },
        }
    ]


def test_a_known_end_stays() -> None:
    """What a container said of itself is not written over."""
    assert ended_containers({"containerStatuses": [exited()]}, "why") == {"containerStatuses": [exited()]}


def test_waiting_containers_end_and_waiting_init_containers_do_not() -> None:
    """A kubelet marks main containers of an ended pod; an init container that never came to its turn stays waiting."""
    waiting = {"name": "one", "state": {"waiting": {"reason": "PodInitializing"}}}
    lists = {"containerStatuses": [waiting], "initContainerStatuses": [waiting, running("two")]}
    found = ended_containers(lists, "why")
    assert "terminated" in found["containerStatuses"][0]["state"]
    assert found["initContainerStatuses"][0] == waiting
    assert "terminated" in found["initContainerStatuses"][1]["state"]


def test_a_container_without_a_state_ends_too() -> None:
    """The API's default for no state at all is waiting."""
    assert (
        "terminated" in ended_containers({"containerStatuses": [{"name": "x"}]}, "w")["containerStatuses"][0]["state"]
    )


def test_the_lists_as_they_are() -> None:
    """Absent lists are empty ones."""
    assert present_containers(pod()) == EMPTY
    assert present_containers(pod(status={"containerStatuses": [running()]}))["containerStatuses"] == [running()]
