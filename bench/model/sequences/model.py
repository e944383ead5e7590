"""The model: what must be true in the end, whatever went wrong before, and what must not be done at any moment.

The model knows nothing of how the engine works: it compares the objects that exist with the desired state in the upper
cluster and with the objects of other owners in the lower clusters. If two outcomes are right, it accepts both: a pod
that another client deleted in the lower cluster before it was reported as running is recreated, or reported as lost. No
other outcomes are accepted.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bench.kit import histories
from bench.kit.oracles import ENDED, upper_uid_of
from tensile.names import OWNER as OWNER_LABEL
from tensile.names import UPPER_UID
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    NODE,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    UPPER,
    VOLUME,
    Kind,
    Manifest,
    Ref,
    annotations,
    labels,
    metadata,
    uid,
)

if TYPE_CHECKING:
    from bench.model.sequences.simulation import Simulation

PODS, MAPS, SECRETS = ("p0", "p1", "p2"), ("m0", "m1"), ("s0",)
CLAIMS, ACCOUNTS, SERVICES, SLICES = ("c0",), ("a0",), ("v0",), ("v0-1",)
LABEL = "team"
SPACE, LOWERS = "shop", ("lower-a", "lower-b")
"""The namespace of all objects, and the lower clusters, whose virtual nodes have the same names."""
_COPIED = (*((CONFIG_MAP, name) for name in MAPS), (SECRET, SECRETS[0]), (SERVICE_ACCOUNT, ACCOUNTS[0]))
_CONTENT = {
    CONFIG_MAP: ("data",),
    SECRET: ("data", "type"),
    SERVICE_ACCOUNT: ("imagePullSecrets", "automountServiceAccountToken"),
    ENDPOINT_SLICE: ("endpoints",),
}
Need = tuple[Kind, str]


class Model:
    """What is known of a simulation beyond its objects, and what is wrong there.

    Objects of other owners are kept as they were created. `killed` and `phases` are by upper UID: the objects whose
    lower copies other clients ended, and the phases that kubelets reported for pods. Once the topology file
    `is_edited`, a label may belong to another owner who set it while the engine must not write it. `mark` is the
    owner's mark.
    """

    def __init__(self, mark: str) -> None:
        self.strangers: dict[Ref, Manifest] = {}
        self.killed: set[str] = set()
        self.phases: dict[str, set[str]] = {}
        self.harms: list[str] = []
        self.is_edited = False
        self._mark = mark
        self._homes: dict[str, set[str]] = {}
        self._claim_of: dict[tuple[str, str], str] = {}
        self._simulation: Simulation | None = None

    def attach(self, simulation: "Simulation") -> None:
        """Observe this simulation from now on."""
        self._simulation = simulation

    def made(self) -> None:
        """Record, when a pod is created, in which lower clusters claims may have their data, and its own claims."""
        for name in CLAIMS:
            claim = self._find(UPPER, CLAIM, name)
            pods = [one for other in PODS if (one := self._find(UPPER, POD, other)) and (CLAIM, name) in needs(one)]
            if claim is not None:
                self._homes.setdefault(uid(claim), set()).update(one["spec"]["nodeName"] for one in pods)
                for one in pods:
                    self._claim_of.setdefault((uid(one), name), uid(claim))

    def ours(self, lower: str, kind: Kind, name: str) -> Manifest | None:
        """Return the engine's lower object of a name, None for none or for another owner's, whatever marks that has."""
        found = self._find(lower, kind, name)
        stranger = self.strangers.get(Ref(lower, kind, SPACE, name))
        if found is None or (stranger is not None and uid(stranger) == uid(found)):
            return None
        return found if labels(found).get(OWNER_LABEL) == self._mark and upper_uid_of(found) else None

    # What must not be done.

    def check_write(self, verb: str, ref: Ref, content: Any) -> None:
        """Check a write just before it is carried out; `content` is a body, a patch's body, or a deletion's UID."""
        self.harms += [f"{verb} {ref}: {failure_texts}" for failure_texts in self._harm(verb, ref, content)]

    def _harm(self, verb: str, ref: Ref, content: Any) -> Iterator[str]:
        assert self._simulation is not None
        seen = self._simulation.find(ref)
        if verb.startswith("patch") and not _is_fenced(content):
            yield "no fence"
        if seen is not None and verb != "create" and ref in self.strangers and is_about(seen, content):
            yield "is a stranger's"
        if ref.kind == POD and verb == "create":
            yield from self._harm_of_second_run(ref, content)
        if ref.kind == POD and verb == "patch status" and ref.cluster == UPPER:
            yield from self._harm_of_status(content)
        if verb == "delete" and seen is not None and uid(seen) == content:
            yield from self._harm_of_end(ref, seen)

    def _harm_of_second_run(self, ref: Ref, body: Manifest) -> Iterator[str]:
        """Yield a failure if a lower pod is created for an upper pod that has already run.

        That is allowed as long as the upper pod is Pending, and has no effect if the name is taken.
        """
        assert self._simulation is not None
        above = self._find(UPPER, POD, ref.name) if self._simulation.find(ref) is None else None
        if above is None or uid(above) != annotations(body)[UPPER_UID]:
            return
        if above["status"].get("phase") != "Pending" and not self._is_delayed(uid(above)):
            yield f"runs a second time: {above['status'].get('phase')} above"

    def _harm_of_status(self, body: Manifest) -> Iterator[str]:
        """Yield a failure if an upper pod gets a phase that no kubelet reported.

        Failed is allowed if its lower pod was killed, and any phase if the upper pod is being deleted.
        """
        upper_uid, phase = metadata(body).get("uid", ""), (body.get("status") or {}).get("phase")
        allowed_phases = {"Pending", None, *self.phases.get(upper_uid, ())}
        above = next((one for name in PODS if (one := self._find(UPPER, POD, name)) and uid(one) == upper_uid), None)
        if above is None or phase in allowed_phases or (phase == "Failed" and upper_uid in self.killed):
            return
        if "deletionTimestamp" not in metadata(above):
            yield f"is {phase}, which no kubelet said"

    def _harm_of_end(self, ref: Ref, seen: Manifest) -> Iterator[str]:
        if ref.kind == POD and ref.cluster == UPPER:
            yield from self._harm_of_upper_end(seen)
        elif ref.kind == POD:
            above = self._find(UPPER, POD, ref.name)
            if above is not None and uid(above) == upper_uid_of(seen) and _lives(above):
                yield "its upper pod lives"
        elif ref.kind == CLAIM and (seen.get("status") or {}).get("phase") == "Bound":
            above = self._find(UPPER, CLAIM, ref.name)
            is_used = above and uid(above) == upper_uid_of(seen) and above["spec"].get("volumeName")
            if seen["spec"]["storageClassName"] == "stays" or is_used:
                yield "there is data in it"

    def _harm_of_upper_end(self, seen: Manifest) -> Iterator[str]:
        """Yield a failure if an upper pod is removed that no user deleted, or whose lower pod still exists."""
        if "deletionTimestamp" not in metadata(seen):
            yield "no user deleted it"
        below = (self.ours(lower, POD, metadata(seen)["name"]) for lower in LOWERS)
        if any(one and upper_uid_of(one) == uid(seen) for one in below) and not self._is_delayed(uid(seen)):
            yield "it still runs below"

    def _is_delayed(self, upper_uid: str) -> bool:
        """Report whether a create of a pod's lower pod arrived, or may arrive, after the engine gave it up."""
        assert self._simulation is not None
        delayed = (body for way in self._simulation.connections.values() for body in way.delayed)
        return any(annotations(body).get(UPPER_UID) == upper_uid for body in delayed)

    # What has to be in the end.

    def wrong(self) -> list[str]:
        """Return how the clusters differ from the required state, and what must not have been done."""
        assert self._simulation is not None
        theirs = {uid(one) for one in self.strangers.values()}
        below = [one for one in self._simulation.pod_events if one.cluster != UPPER and uid(one.pod) not in theirs]
        failures = [*self._simulation.defects, *self.harms]
        failures += [
            failure_texts for failure_texts in histories.lived_twice(below) if "somebody's" not in failure_texts
        ]
        failures += histories.reverted(one for one in self._simulation.pod_events if one.cluster == UPPER)
        for ref, before in self.strangers.items():
            failures += [f"{ref} is a stranger's and was touched"] if self._simulation.find(ref) != before else []
        for failure_texts in (self._wrong_pod(name) for name in PODS):
            failures += failure_texts
        for lower in LOWERS:
            failures += self._wrong_below(lower)
        return [*dict.fromkeys(failures), *self._wrong_claims()]

    def _wrong_pod(self, name: str) -> list[str]:
        above = self._find(UPPER, POD, name)
        node = above["spec"]["nodeName"] if above else ""
        left = [lower for lower in LOWERS if lower != node and self.ours(lower, POD, name)]
        failures = [f"{name} runs in {lower} without an upper pod" for lower in left]
        if above is not None and "deletionTimestamp" in metadata(above):
            return [*failures, f"{name} does not come to its end"]
        return [*failures, *self._unlike(name, above, self.ours(node, POD, name))] if above else failures

    def _unlike(self, name: str, above: Manifest, below: Manifest | None) -> Iterator[str]:
        """Yield how an upper pod differs from its lower pod."""
        phase = above["status"].get("phase")
        if below is None:
            may_be_gone = phase in ENDED and (uid(above) in self.killed or phase in self.phases.get(uid(above), ()))
            if not may_be_gone and not self._is_kept_back(above):
                yield f"{name} is not below, {phase} above"
        elif upper_uid_of(below) != uid(above):
            yield f"{name} below is of another pod"
        elif phase != below["status"].get("phase"):
            yield f"{name} is {phase} above and {below['status'].get('phase')} below"
        elif phase not in ENDED and not self.is_edited and labels(above).get(LABEL) != labels(below).get(LABEL):
            yield f"{name} has other labels below"

    def _is_kept_back(self, above: Manifest) -> bool:
        """Report whether another owner's object, or a missing one, prevents a pod from running in the lower cluster."""
        lower = above["spec"]["nodeName"]
        wanted = {(POD, metadata(above)["name"]), *needs(above)}
        if any(Ref(lower, kind, SPACE, name) in self.strangers for kind, name in wanted):
            return True
        return any(self._is_missing(kind, name, lower) for kind, name in wanted if kind != POD)

    def _is_missing(self, kind: Kind, name: str, lower: str) -> bool:
        """Report whether a pod of a lower cluster cannot have an object that it needs."""
        found = self._find(UPPER, kind, name)
        if found is None or kind != CLAIM:
            return found is None
        if "deletionTimestamp" in metadata(found):
            return True
        copies = [copy for one in LOWERS if (copy := self.ours(one, CLAIM, name))]
        elsewhere = self._homes.get(uid(found), set()) != {lower}
        return elsewhere or uid(found) in self.killed or any(upper_uid_of(copy) != uid(found) for copy in copies)

    def _wrong_below(self, lower: str) -> Iterator[str]:
        """Yield how the mirrored objects of a lower cluster differ from those that its pods need."""
        assert self._simulation is not None
        if self._simulation.find(Ref(UPPER, NODE, "", lower)) is None:
            yield f"there is no node {lower}"
        running = [one for name in PODS if (one := self.ours(lower, POD, name))]
        living = self._living(lower)
        alive = {uid(pod) for pod in living}
        served = [pod for pod in running if upper_uid_of(pod) in alive]
        needed = {need for pod in served for need in needs(pod)}
        useful = {need for pod in (*running, *living) for need in needs(pod)}
        for need in _COPIED:
            if need in needed:
                yield from self._wrong_copy(lower, *need)
            elif need not in useful and self.ours(lower, *need):
                yield f"{need[0].name} {need[1]} is in {lower} without a user"
        if served or not (running or living):  # beside pods that have ended, it is left unchanged
            yield from self._wrong_service(lower, is_needed=bool(served))

    def _living(self, lower: str) -> list[Manifest]:
        """Return the upper pods that are to run in a lower cluster; what they need may be there before they are."""
        found = [one for name in PODS if (one := self._find(UPPER, POD, name))]
        return [one for one in found if one["spec"]["nodeName"] == lower and one["status"].get("phase") not in ENDED]

    def _wrong_copy(self, lower: str, kind: Kind, name: str) -> list[str]:
        """Return how a mirrored object differs from the one that running pods need."""
        above, below = self._find(UPPER, kind, name), self.ours(lower, kind, name)
        if above is None or Ref(lower, kind, SPACE, name) in self.strangers:
            return []
        if below is None or upper_uid_of(below) != uid(above):
            return [f"{kind.name} {name} is not in {lower} as of the one above"]
        return _differences(kind, name, above, below)

    def _wrong_service(self, lower: str, *, is_needed: bool) -> Iterator[str]:
        """Yield failures of the Service and its endpoints in a lower cluster.

        They exist if pods of their namespace do; no endpoints are added to a Service of another owner.
        """
        above, slice_above = self._find(UPPER, SERVICE, SERVICES[0]), self._find(UPPER, ENDPOINT_SLICE, SLICES[0])
        below, slice_below = self.ours(lower, SERVICE, SERVICES[0]), self.ours(lower, ENDPOINT_SLICE, SLICES[0])
        is_taken = Ref(lower, SERVICE, SPACE, SERVICES[0]) in self.strangers
        is_wanted = is_needed and above is not None and not is_taken
        if not is_needed and self._is_confusing(lower):
            return
        if (below is not None) != is_wanted:
            yield f"the Service is {'not ' if is_wanted else ''}in {lower}"
        elif below is not None and above is not None and _ports(below) != _ports(above):
            yield f"the Service has other ports in {lower}"
        if Ref(lower, ENDPOINT_SLICE, SPACE, SLICES[0]) in self.strangers:
            return
        if (slice_below is not None) != (is_wanted and slice_above is not None):
            yield f"the slice is {'there' if slice_below else 'not there'} in {lower}"
        elif slice_below is not None and slice_above is not None:
            yield from _differences(ENDPOINT_SLICE, SLICES[0], slice_above, slice_below)

    def _is_confusing(self, lower: str) -> bool:
        """Report whether another owner's pod has the engine's label: that keeps Services there, and does no harm."""
        pods = (one for ref, one in self.strangers.items() if (ref.cluster, ref.kind) == (lower, POD))
        return any(labels(one).get(OWNER_LABEL) == self._mark for one in pods)

    def _wrong_claims(self) -> Iterator[str]:
        """Yield failures of claims: two copies, no copy of a bound claim, one far from its pod, or one of no claim."""
        for name in CLAIMS:
            above = self._find(UPPER, CLAIM, name)
            copies = [copy for lower in LOWERS if (copy := self.ours(lower, CLAIM, name))]
            if above and sum(upper_uid_of(copy) == uid(above) for copy in copies) > 1:
                yield f"claim {name} has two homes"
            if above and above["spec"].get("volumeName") and uid(above) not in self.killed and not copies:
                yield f"claim {name} is bound, and there is nothing below"
            if above and uid(above) not in self.killed:
                yield from self._wrong_homes(name, above)
            for copy in copies if above is None else ():
                if self._is_to_go(copy) and "deletionTimestamp" not in metadata(copy):
                    yield f"claim {name} is left without a user"

    def _wrong_homes(self, name: str, above: Manifest) -> Iterator[str]:
        """Yield in which clusters pods run that need a claim whose data is in another one.

        A pod whose claim was replaced while it ran keeps the data of the former claim.
        """
        copies = [(lower, self.ours(lower, CLAIM, name)) for lower in LOWERS]
        homes = [lower for lower, copy in copies if copy and upper_uid_of(copy) == uid(above)]
        for pod_name in PODS:
            pod = self._find(UPPER, POD, pod_name)
            if not homes or pod is None or not _lives(pod) or self._claim_of.get((uid(pod), name)) != uid(above):
                continue
            for lower in LOWERS:
                below = self.ours(lower, POD, pod_name)
                if below and upper_uid_of(below) == uid(pod) and lower not in homes:
                    yield f"claim {name} is in {homes[0]}, and its pod {pod_name} in {lower}"

    def _is_to_go(self, copy: Manifest) -> bool:
        """Report whether the upper cluster requests to delete a claim's data, by its placeholder volume."""
        assert self._simulation is not None
        volume = self._simulation.find(Ref(UPPER, VOLUME, "", f"pvc-{upper_uid_of(copy)}"))
        return volume is not None and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"

    def _find(self, cluster: str, kind: Kind, name: str) -> Manifest | None:
        assert self._simulation is not None
        return self._simulation.find(Ref(cluster, kind, SPACE, name))


def _lives(pod: Manifest) -> bool:
    """Report whether a pod has neither ended nor been deleted."""
    return "deletionTimestamp" not in metadata(pod) and pod["status"].get("phase") not in ENDED


def needs(pod: Manifest) -> Iterator[Need]:
    """Yield the objects that a pod of a sequence refers to."""
    for volume in pod["spec"].get("volumes") or ():
        if "configMap" in volume:
            yield CONFIG_MAP, volume["configMap"]["name"]
        if "secret" in volume:
            yield SECRET, volume["secret"]["secretName"]
        if "persistentVolumeClaim" in volume:
            yield CLAIM, volume["persistentVolumeClaim"]["claimName"]
    account = pod["spec"].get("serviceAccountName") or "default"
    if account != "default":
        yield SERVICE_ACCOUNT, account


def _differences(kind: Kind, name: str, above: Manifest, below: Manifest) -> list[str]:
    fields: Iterable[str] = _CONTENT[kind]
    unlike = [field for field in fields if field in above and above[field] != below.get(field)]
    return [f"{kind.name} {name}: {field} is {below.get(field)} and not {above[field]}" for field in unlike]


def _ports(service: Manifest) -> list[tuple[str, int]]:
    return [(one["name"], one["port"]) for one in service["spec"]["ports"]]


def _is_fenced(body: Any) -> bool:
    """Report whether a patch carries a UID or a resourceVersion as a precondition."""
    if isinstance(body, list):
        return any(one["path"] in ("/metadata/uid", "/metadata/resourceVersion") for one in body)
    return bool({"uid", "resourceVersion"} & (body.get("metadata") or {}).keys())


def is_about(seen: Manifest, content: Any) -> bool:
    """Report whether a write would change exactly this object: its precondition has this UID."""
    if isinstance(content, str):
        return content == uid(seen)
    if isinstance(content, list):
        return any(one["path"] == "/metadata/uid" and one.get("value") == uid(seen) for one in content)
    return bool((content.get("metadata") or {}).get("uid") == uid(seen))
