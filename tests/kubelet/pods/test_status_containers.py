"""Tests of container statuses: which are mirrored, which the apiserver would reject, and how unknown ends are shown."""

from typing import Any

import pytest
from podkit import EARLIER, exited, make_lower_pod, pod, running
from podviewkit import present_statuses, reflected_statuses

from tensile.kubelet.pods.status import ended_statuses

EMPTY = {"containerStatuses": [], "initContainerStatuses": [], "ephemeralContainerStatuses": []}


def desired_lists(spec: dict, upper_object: dict, lower: dict) -> dict:
    """Return the desired lists of the upper pod, from both statuses."""
    return reflected_statuses(pod(spec, upper_object), make_lower_pod(lower))


def after_exit(code: int, **spec: Any) -> str:
    """Return the state that an exited container has in the upper pod when it is running in the lower pod."""
    found = desired_lists(spec, {"containerStatuses": [exited(code=code)]}, {"containerStatuses": [running()]})
    (state,) = found["containerStatuses"][0]["state"]
    return str(state)


def container(**fields: Any) -> dict:
    """Return a spec with one container that has these fields."""
    return {"containers": [{"name": "main", **fields}]}


def test_container_statuses_are_mirrored_completely() -> None:
    """Unknown fields of a status are kept too."""
    status = running(restartCount=3, allocatedResources={"cpu": "1"}, somethingNew={"a": 1})
    assert desired_lists({}, {}, {"containerStatuses": [status]}) == EMPTY | {"containerStatuses": [status]}


def test_only_containers_of_the_upper_spec_are_mirrored() -> None:
    """A sidecar that a webhook of the lower injected is no container of the upper pod."""
    spec = {"initContainers": [{"name": "init"}], "ephemeralContainers": [{"name": "debug"}]}
    lower = {
        "containerStatuses": [running(), running("injected")],
        "initContainerStatuses": [exited("init"), exited("main")],
        "ephemeralContainerStatuses": [running("debug"), running("init")],
    }
    assert desired_lists(spec, {}, lower) == {
        "containerStatuses": [running()],
        "initContainerStatuses": [exited("init")],
        "ephemeralContainerStatuses": [running("debug")],
    }


def ruled(action: str, operator: str, *codes: int) -> dict:
    """Return the fields of a container with a rule about its exit code."""
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
def test_an_ended_container_is_shown_running_only_if_its_pod_permits_restarts(
    spec: dict, code: int, state: str
) -> None:
    """Otherwise the apiserver would reject the whole status.

    A container's own policy has precedence over its pod's. A rule that matches the exit code restarts it in any case,
    and one that restarts all containers applies to each of them. Unknown actions do not count as a restart.
    """
    assert after_exit(code, **spec) == state


def test_a_container_that_had_not_ended_has_the_lower_containers_state() -> None:
    """A waiting or running container, or one without a state, may change to any state."""
    for before in ({"waiting": {}}, {"running": {}}, {}, None):
        upper_object = {"containerStatuses": [{"name": "main", "state": before}]}
        found = desired_lists({"restartPolicy": "Never"}, upper_object, {"containerStatuses": [running()]})
        assert found["containerStatuses"] == [running()]


def test_an_ended_ephemeral_container_is_never_shown_running() -> None:
    """This holds even in a pod that restarts all other containers."""
    spec = {"restartPolicy": "Always", "ephemeralContainers": [{"name": "debug"}]}
    upper_object = {"ephemeralContainerStatuses": [exited("debug")]}
    found = desired_lists(spec, upper_object, {"ephemeralContainerStatuses": [running("debug")]})
    assert found["ephemeralContainerStatuses"] == [exited("debug")]


def test_a_newer_end_replaces_an_older_one() -> None:
    """Details of an end that become known later are mirrored."""
    found = desired_lists(
        {"restartPolicy": "Never"},
        {"containerStatuses": [exited(code=137)]},
        {"containerStatuses": [exited(code=0)]},
    )
    assert found["containerStatuses"] == [exited(code=0)]


def test_running_containers_get_the_unknown_end_that_a_kubelet_reports() -> None:
    """It has exit code 137 and reason ContainerStatusUnknown, with the known ID and start."""
    found = ended_statuses(EMPTY | {"containerStatuses": [running(containerID="x://1")]}, "why")
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


def test_a_known_end_is_kept() -> None:
    """The real exit of a container is not overwritten."""
    assert ended_statuses({"containerStatuses": [exited()]}, "why") == {"containerStatuses": [exited()]}


def test_waiting_containers_end_and_waiting_init_containers_do_not() -> None:
    """A kubelet marks main containers of an ended pod; an init container that never started is kept waiting."""
    waiting = {"name": "one", "state": {"waiting": {"reason": "PodInitializing"}}}
    lists = {"containerStatuses": [waiting], "initContainerStatuses": [waiting, running("two")]}
    found = ended_statuses(lists, "why")
    assert "terminated" in found["containerStatuses"][0]["state"]
    assert found["initContainerStatuses"][0] == waiting
    assert "terminated" in found["initContainerStatuses"][1]["state"]


def test_a_container_without_a_state_ends_too() -> None:
    """The API's default for a missing state is waiting."""
    assert "terminated" in ended_statuses({"containerStatuses": [{"name": "x"}]}, "w")["containerStatuses"][0]["state"]


def test_absent_lists_of_containers_are_empty() -> None:
    """Lists that the status contains are returned unchanged."""
    assert present_statuses(pod()) == EMPTY
    assert present_statuses(pod(status={"containerStatuses": [running()]}))["containerStatuses"] == [running()]
