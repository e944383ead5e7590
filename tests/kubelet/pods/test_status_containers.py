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


@pytest.mark.parametrize(
    ("policy", "code", "state"),
    [
        (None, 0, "running"),
        ("Always", 0, "running"),
        ("Always", 1, "running"),
        ("OnFailure", 1, "running"),
        ("OnFailure", 0, "terminated"),
        ("Never", 0, "terminated"),
        ("Never", 1, "terminated"),
    ],
)
def test_a_container_comes_back_only_as_its_pods_policy_allows(policy: str | None, code: int, state: str) -> None:
    """The apiserver refuses the whole write otherwise."""
    assert after_exit(code, **({"restartPolicy": policy} if policy else {})) == state


@pytest.mark.parametrize(
    ("own", "code", "state"),
    [("Always", 0, "running"), ("OnFailure", 1, "running"), ("OnFailure", 0, "terminated"), ("Never", 1, "terminated")],
)
def test_a_containers_own_policy_comes_first(own: str, code: int, state: str) -> None:
    """Whatever the pod says."""
    pods = "Never" if state == "running" else "Always"
    assert after_exit(code, restartPolicy=pods, **container(restartPolicy=own)) == state


@pytest.mark.parametrize(
    ("operator", "values", "code", "state"),
    [
        ("In", [42], 42, "running"),
        ("In", [42], 1, "terminated"),
        ("NotIn", [42], 1, "running"),
        ("NotIn", [42], 42, "terminated"),
    ],
)
def test_a_rule_about_exit_codes_can_restart(operator: str, values: list, code: int, state: str) -> None:
    """A rule that matches the exit code restarts a container that its policy would not."""
    rule = {"action": "Restart", "exitCodes": {"operator": operator, "values": values}}
    assert after_exit(code, **container(restartPolicy="Never", restartPolicyRules=[rule])) == state


def test_a_rule_that_restarts_all_containers_frees_all() -> None:
    """With such a rule anywhere in the pod, any of its containers may come back."""
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
    init = {"initContainers": [{"name": "init", "restartPolicyRules": [rule]}]}
    assert after_exit(0, restartPolicy="Never", **init) == "running"


def test_such_a_rule_may_stand_in_any_container() -> None:
    """The main container's own rule does it as well."""
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
    assert after_exit(0, restartPolicy="Never", **container(restartPolicyRules=[rule])) == "running"


def test_a_rule_of_another_action_restarts_nothing() -> None:
    """An action that this project does not know cannot be counted on."""
    rule = {"action": "Hibernate", "exitCodes": {"operator": "In", "values": [0]}}
    assert after_exit(0, **container(restartPolicy="Never", restartPolicyRules=[rule])) == "terminated"


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
