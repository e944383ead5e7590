"""Actions of honest and hostile tenants, and faults of the engine and its watches.

An action is a sort and a number that determines its object and its details; an action that does not apply has no
effect. So a sequence stays valid if actions are removed from it, and the same seed always gives the same sequence.
"""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from bench.model.hostility import forging, honest
from bench.model.hostility.choices import RANGE, Choices
from bench.model.hostility.forging import Forgery, Known
from bench.model.hostility.markers import ABOVE, BELOW
from bench.model.hostility.setting import SETTINGS
from bench.model.hostility.tenant_api import HONEST, TenantAPI
from bench.model.sequences.actions import Action
from bench.model.sequences.model import LOWERS
from tensile.objects import EVENT, NAMESPACE, POD, SECRET, UPPER, Kind, Manifest, Ref, metadata, uid

SORTS = (
    "pod", "pod", "pod", "pod", "pod", "pod", "pod", "pod", "delete", "delete", "again", "again", "again",
    "change", "change", "unmake", "relabel", "relabel", "relabel", "serve", "serve", "kill", "kill", "read", "read",
    "forge", "forge", "forge", "forge", "mimic", "mimic", "mimic", "mimic", "precede", "precede", "thing", "thing",
    "tamper", "tamper", "tamper", "erase", "erase", "flood", "tell", "tell",
    "pretend", "pretend", "pretend", "stuff", "stuff", "stuff", "withdraw",
    "crash", "crash", "down", "up", "hold", "release", "wait", "wait", "wait", "wait", "wait", "wait", "wait",
)  # fmt: skip
MOST = 60
FLOOD = 8
"""More pods than the guard lets pass at once."""
_BEFALLS = ("crash", "down", "up", "hold", "release")
_WAITS = (0.05, 0.3, 1.0, 7.0)
T = TypeVar("T")


def random_actions(seed: int, most: int = MOST) -> list[Action]:
    """Return the sequence of a seed; its first action is the setting, and settings take turns by seed."""
    random = Random(seed)
    actions = [Action(random.choice(SORTS), random.randrange(RANGE)) for _ in range(random.randint(most // 3, most))]
    return [Action("setting", seed % len(SETTINGS)), *actions]


class ActionRunner:
    """Runs actions through `TenantAPI`; `node_of` returns the virtual node of a lower cluster."""

    def __init__(self, api: TenantAPI, node_of: Callable[[str], str] = str) -> None:
        self._api = api
        self._node_of = node_of
        self._ledger = api.ledger
        self._setting = api.ledger.setting
        self._sorts: dict[str, Callable[[Choices], Awaitable[object]]] = {
            "pod": self._make,
            "delete": self._delete,
            "again": self._again,
            "change": self._change,
            "unmake": self._unmake,
            "relabel": self._relabel,
            "serve": self._serve,
            "kill": self._kill,
            "forge": self._forge,
            "mimic": self._mimic,
            "precede": self._precede,
            "thing": self._thing,
            "tamper": self._tamper,
            "erase": self._erase,
            "flood": self._flood,
            "tell": self._tell,
            "pretend": self._pretend,
            "stuff": self._stuff,
            "withdraw": self._withdraw,
        }

    async def run(self, action: Action) -> None:
        """Carry out one action."""
        choices = Choices(action.number)
        if action.sort in self._sorts:
            await self._sorts[action.sort](choices)
        elif action.sort in _BEFALLS:
            await self._api.inject_fault(action.sort, action.number)
        elif action.sort == "read":
            await self._read(choices)
        elif action.sort == "wait":
            await self._api.let_time_pass(choices.pick(_WAITS))

    # Actions of honest tenants.

    async def _make(self, choices: Choices) -> None:
        """Bind a pod that refers to other objects, and create those that are missing."""
        namespace, name = choices.pick(self._setting.honest), choices.pick(honest.PODS)
        if self._api.find(Ref(UPPER, POD, namespace, name)) is None:
            await self._put_honest(namespace, name, choices)

    async def _put_honest(self, namespace: str, name: str, choices: Choices) -> None:
        word, lower = self._ledger.markers.new(namespace, POD, name), choices.pick(LOWERS)
        found = honest.wanted(name, lower, choices, self._setting, word)
        found.pod["spec"]["nodeName"] = self._node_of(lower)
        for kind, needed in (*found.needs, (SECRET, honest.PRIVATE)):
            await self._provide(kind, namespace, needed)
        await self._api.create(Ref(UPPER, POD, namespace, name), found.pod, HONEST)

    async def _delete(self, choices: Choices) -> None:
        """Delete a pod, sometimes by force."""
        pod = _one_of(choices, self._honest_pods())
        if pod is not None:
            await self._api.delete(_ref(UPPER, POD, pod), pod, HONEST, choices.pick((None, None, 0, 5)))

    async def _again(self, choices: Choices) -> None:
        """Delete a pod by force and immediately create another with its name, on either lower cluster."""
        pod = _one_of(choices, self._honest_pods())
        if pod is not None:
            await self._api.delete(_ref(UPPER, POD, pod), pod, HONEST, 0)
            await self._put_honest(metadata(pod)["namespace"], metadata(pod)["name"], choices)

    async def _change(self, choices: Choices) -> None:
        """Change the content of an object."""
        namespace, (kind, name) = choices.pick(self._setting.honest), choices.pick(honest.ORIGINALS)
        ref = Ref(UPPER, kind, namespace, name)
        if self._api.find(ref) is not None:
            await self._api.patch(ref, honest.body(kind, namespace, name, self._ledger.markers), HONEST)

    async def _unmake(self, choices: Choices) -> None:
        """Delete an object that pods may need."""
        namespace, (kind, name) = choices.pick(self._setting.honest), choices.pick((*honest.ORIGINALS, *honest.SERVED))
        found = self._api.find(Ref(UPPER, kind, namespace, name))
        if found is not None:
            await self._api.delete(Ref(UPPER, kind, namespace, name), found, HONEST)

    async def _relabel(self, choices: Choices) -> None:
        """Change a label of a pod."""
        pod = _one_of(choices, self._honest_pods())
        if pod is not None:
            ref = _ref(UPPER, POD, pod)
            word = self._ledger.markers.new(ref.namespace, POD, ref.name)
            await self._api.patch(ref, {"metadata": {"labels": {"team": word}}}, HONEST)

    async def _read(self, choices: Choices) -> None:
        """Read the log of a pod."""
        pod = _one_of(choices, self._honest_pods())
        if pod is not None:
            await self._api.read(_ref(UPPER, POD, pod))

    async def _serve(self, choices: Choices) -> None:
        """Create a Service, its EndpointSlice, and RBAC objects."""
        namespace = choices.pick(self._setting.honest)
        for kind, name in (*honest.SERVED, *honest.RIGHTS):
            await self._provide(kind, namespace, name)

    async def _kill(self, choices: Choices) -> None:
        """Delete a lower pod as its own tenant."""
        pod = _one_of(choices, self._honest_pods())
        if pod is None:
            return
        above = _ref(UPPER, POD, pod)
        lower = pod["spec"]["nodeName"]
        ref = Ref(lower, POD, self._ledger.lower_namespaces.of(above.namespace, lower), above.name)
        below = self._api.find(ref)
        if below is not None and uid(below) not in self._ledger.hostile:
            self._ledger.killed.add(uid(pod))
            await self._api.delete(ref, below, HONEST)

    # Actions of the hostile lower tenant.

    async def _forge(self, choices: Choices) -> None:
        """Create a pod."""
        await self._put(forging.pod_below(choices, self._known(BELOW)))

    async def _mimic(self, choices: Choices) -> None:
        """Create a pod that looks like the lower pod of an honest tenant."""
        every = self._honest_pods()
        near = [one for one in every if metadata(one)["namespace"] == self._setting.mapped]
        is_near = choices.pick((True, True, False))
        pod = _one_of(choices, near if near and is_near else every)
        if pod is not None:
            await self._put(forging.mimic(choices, self._known(BELOW), pod))

    async def _precede(self, choices: Choices) -> None:
        """Create a pod that looks like the lower pod of an older upper pod."""
        await self._put(forging.predecessor(choices, self._known(BELOW)))

    async def _thing(self, choices: Choices) -> None:
        """Create an object of another kind."""
        await self._put(forging.thing(choices, self._known(BELOW)))

    async def _tamper(self, choices: Choices) -> None:
        """Change ownership marks, finalizers and other metadata of an object, whoever created it."""
        found = _one_of(choices, self._there())
        if found is not None:
            meta, manager = forging.disguise(choices, self._known(BELOW), found[0])
            self._ledger.hostile.add(uid(found[1]))
            await self._api.patch(_ref(self._setting.lower, *found), {"metadata": meta}, BELOW, manager)

    async def _erase(self, choices: Choices) -> None:
        """Delete an object, whoever created it."""
        found = _one_of(choices, self._there())
        if found is not None:
            await self._remove(self._setting.lower, *found, BELOW, 0 if found[0] == POD and choices.chance(2) else None)

    async def _flood(self, choices: Choices) -> None:
        """Create many similar pods, with names that no tenant uses."""
        forgery = forging.pod_below(choices, self._known(BELOW))
        for number in range(FLOOD):
            meta = {**forgery.body["metadata"], "name": f"flood-{number}"}
            await self._put(forgery._replace(body={**forgery.body, "metadata": meta}))

    async def _tell(self, choices: Choices) -> None:
        """Create an event about a pod."""
        pod = _one_of(choices, [one for kind, one in self._there() if kind == POD])
        if pod is not None:
            meta = metadata(pod)
            about = {"kind": POD.name, "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
            event = forging.event(choices, self._known(BELOW), about)
            await self._put(Forgery(EVENT, event, forging.OTHER_MANAGER))

    # Actions of the hostile upper tenant.

    async def _pretend(self, choices: Choices) -> None:
        """Create a pod."""
        nodes = [self._node_of(lower) for lower in LOWERS]
        await self._put(forging.pod_above(choices, self._known(ABOVE), nodes), ABOVE)

    async def _stuff(self, choices: Choices) -> None:
        """Create an object of another kind."""
        await self._put(forging.thing(choices, self._known(ABOVE)), ABOVE)

    async def _withdraw(self, choices: Choices) -> None:
        """Delete an object; sometimes its finalizer is removed as well, so that it is really removed."""
        kind = choices.pick((POD, POD, *forging.KINDS))
        found = _one_of(choices, sorted(self._of_his(kind), key=_place_of))
        if found is not None:
            await self._remove(UPPER, kind, found, ABOVE, frees=choices.pick((True, False)))

    # Helpers.

    def _known(self, who: str) -> Known:
        """Return what a hostile tenant knows: every UID and every name."""
        setting, uids = self._setting, dict[Kind, list[str]]()
        for kind in honest.NAMES:
            seen = [one for one, (name, space, _) in self._ledger.uppers.items() if name == kind.name and space]
            uids[kind] = seen[::-1]
        names = {
            kind: (*found, *sorted(metadata(one)["name"] for one in self._of_his(kind)))
            for kind, found in honest.NAMES.items()
        }
        ground = self._ledger.lower_namespaces.hostile_namespace()
        there = self._api.find(Ref(setting.lower, NAMESPACE, "", ground)) if ground else None
        space = (uid(there or {}) or "made-up", ground) if who == BELOW else ("made-up", setting.hostile)
        return Known(self._ledger.mark, setting.topology, uids, names, space, lambda: self._ledger.markers.new(who))

    def _of_his(self, kind: Kind) -> list[Manifest]:
        """Return the objects of the hostile upper tenant, except those that others created there."""
        every, others = self._api.list_objects(UPPER, kind), {uid(one) for one in self._ledger.strangers.values()}
        his = [one for one in every if metadata(one)["namespace"] == self._setting.hostile]
        return [one for one in his if uid(one) not in others and metadata(one)["name"] not in honest.GIVEN]

    async def _put(self, forgery: Forgery, who: str = BELOW) -> None:
        """Create an object as a hostile tenant, in his namespace, unless the name is taken."""
        cluster, namespace = UPPER, self._setting.hostile
        if who == BELOW:
            cluster, namespace = self._setting.lower, self._ledger.lower_namespaces.hostile_namespace()
        ref = Ref(cluster, forgery.kind, namespace, forgery.body["metadata"]["name"])
        is_there = self._api.find(Ref(cluster, NAMESPACE, "", namespace)) is not None
        if is_there and self._api.find(ref) is None:
            await self._api.create(ref, forgery.body, who, forgery.manager)

    async def _remove(
        self, cluster: str, kind: Kind, found: Manifest, who: str, grace: int | None = None, *, frees: bool = True
    ) -> None:
        """Delete an object, after removing a hostile tenant's finalizer from it if `frees`."""
        ref = _ref(cluster, kind, found)
        if frees and forging.FINALIZER in (metadata(found).get("finalizers") or ()):
            await self._api.patch(ref, {"metadata": {"finalizers": None}}, who)
        await self._api.delete(ref, found, who, grace)

    async def _provide(self, kind: Kind, namespace: str, name: str) -> None:
        ref = Ref(UPPER, kind, namespace, name)
        if self._api.find(ref) is None:
            await self._api.create(ref, honest.body(kind, namespace, name, self._ledger.markers), HONEST)

    def _honest_pods(self) -> list[Manifest]:
        """Return the upper pods of honest tenants that are not being deleted."""
        every = self._api.list_objects(UPPER, POD)
        theirs = [one for one in every if metadata(one)["namespace"] in self._setting.honest]
        return sorted((one for one in theirs if "deletionTimestamp" not in metadata(one)), key=_place_of)

    def _there(self) -> list[tuple[Kind, Manifest]]:
        """Return the objects in the hostile lower tenant's namespace, except those of other owners than the engine."""
        ground, others = (
            self._ledger.lower_namespaces.hostile_namespace(),
            {uid(one) for one in self._ledger.strangers.values()},
        )
        kinds = (POD, *dict.fromkeys(forging.KINDS))
        every = ((kind, one) for kind in kinds for one in sorted(self._in_his_lower(kind), key=_place_of))
        here = [(kind, one) for kind, one in every if ground and metadata(one)["namespace"] == ground]
        return [(kind, one) for kind, one in here if uid(one) not in others]

    def _in_his_lower(self, kind: Kind) -> list[Manifest]:
        found = self._api.list_objects(self._setting.lower, kind)
        return [one for one in found if metadata(one)["name"] not in honest.GIVEN]


def _one_of(choices: Choices, among: list[T]) -> T | None:
    return choices.pick(among) if among else None


def _ref(cluster: str, kind: Kind, found: Manifest) -> Ref:
    return Ref(cluster, kind, metadata(found)["namespace"], metadata(found)["name"])


def _place_of(manifest: Manifest) -> tuple[str, str]:
    return metadata(manifest)["namespace"], metadata(manifest)["name"]
