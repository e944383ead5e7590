"""Container statuses on their way up, and what they turn into when a pod ends without saying how.

The apiserver refuses a whole status write when one container that may not restart comes back from the dead, so such a
container keeps the end that is known above. Names that only the lower pod has (injected by a webhook there) stay below.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tensile.kubelet.statuspatch import status_of
from tensile.objects import Manifest

_EPHEMERAL = "ephemeralContainerStatuses"
CONTAINERS_OF: Mapping[str, str] = MappingProxyType(
    {
        "containerStatuses": "containers",
        "initContainerStatuses": "initContainers",
        _EPHEMERAL: "ephemeralContainers",
    }
)
"""The field of the spec that each list of statuses is about."""

_KILLED = 137
_RESTART_ALL = "RestartAllContainers"


def reflected_containers(upper_pod: Manifest, lower_pod: Manifest) -> dict[str, list[Manifest]]:
    """Give what the three lists of container statuses should be above."""
    return {field: _reflected(field, upper_pod, lower_pod) for field in CONTAINERS_OF}


def ended_containers(statuses: Mapping[str, list[Manifest]], message: str) -> dict[str, list[Manifest]]:
    """Give the lists with every container ended that had not: exit code 137, reason ContainerStatusUnknown.

    That is what a kubelet reports of a container that it cannot find any more. Init and ephemeral containers that were
    not running keep their state.
    """
    return {field: [_ended(field, one, message) for one in entries] for field, entries in statuses.items()}


def present_containers(upper_pod: Manifest) -> dict[str, list[Manifest]]:
    """Give the three lists as they are above."""
    return {field: status_of(upper_pod).get(field) or [] for field in CONTAINERS_OF}


def _reflected(field: str, upper_pod: Manifest, lower_pod: Manifest) -> list[Manifest]:
    """Give one list as it should be above."""
    below: list[Manifest] = status_of(lower_pod).get(field) or []
    if not below:
        return []
    above: list[Manifest] = status_of(upper_pod).get(field) or []
    spec = upper_pod["spec"]
    specs = {one["name"]: one for one in spec.get(CONTAINERS_OF[field]) or ()}
    ended = {one["name"]: one for one in above if (one.get("state") or {}).get("terminated")}
    shown = [one for one in below if one["name"] in specs]
    back = {one["name"] for one in shown if one["name"] in ended and "terminated" not in (one.get("state") or {})}
    if not back or (field != _EPHEMERAL and _restarts_together(spec)):
        return shown
    refused = {name for name in back if field == _EPHEMERAL or not _may_restart(specs[name], ended[name], spec)}
    return [ended[one["name"]] if one["name"] in refused else one for one in shown]


def _may_restart(container: Manifest, status: Manifest, spec: Manifest) -> bool:
    """Say whether Kubernetes lets a container run again that ended so."""
    exit_code = status["state"]["terminated"].get("exitCode", 0)
    if _has_restart_rule(container, exit_code):
        return True
    policy = container.get("restartPolicy") or spec.get("restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _restarts_together(spec: Manifest) -> bool:
    """Say whether any container has a rule that restarts all of them."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return any(rule.get("action") == _RESTART_ALL for one in containers for rule in one.get("restartPolicyRules") or ())


def _has_restart_rule(container: Manifest, exit_code: int) -> bool:
    """Say whether a rule of the container restarts it after this exit code."""
    rules = container.get("restartPolicyRules") or ()
    return any(rule.get("action") == "Restart" and _matches(rule.get("exitCodes") or {}, exit_code) for rule in rules)


def _matches(codes: Manifest, exit_code: int) -> bool:
    """Say whether an exit code is one that a rule is about."""
    listed = exit_code in (codes.get("values") or ())
    return listed if codes.get("operator") == "In" else not listed


def _ended(field: str, status: Manifest, message: str) -> Manifest:
    """Give a status as ended, unless it has ended or never began."""
    state = status.get("state") or {}
    if "terminated" in state or (field != "containerStatuses" and "running" not in state):
        return status
    running = state.get("running") or {}
    end = {"exitCode": _KILLED, "reason": "ContainerStatusUnknown", "message": message}
    times = {"startedAt": running.get("startedAt"), "containerID": status.get("containerID")}
    terminated = end | {name: value for name, value in times.items() if value}
    return {**status, "ready": False, "started": False, "state": {"terminated": terminated}}
