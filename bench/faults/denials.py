"""Refusals of a lower cluster appear on the upper pods, are retried slowly, and the pods run soon after they end.

    .venv/bin/python -m bench.faults.denials [--pods 10] [--hold 65] [--kinds quota,busy]

Every kind of refusal has its own namespace, and all last at the same time for `--hold` seconds. Each pod has to be
Pending with the cluster's own message within five seconds, may not be tried more than twelve times in any minute, has
one event for it, never fails, and is created in the lower cluster within seven and a half seconds after the end of the
refusal. The lower cluster determines when it runs then: all kinds end at the same moment.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bench.faults.refusers import Webhook, grant, limited_user
from bench.kit import histories, topologies
from bench.kit.clusters import on_clusters
from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Fault, Passed
from bench.kit.faultproxy.faults import Refused as Refusing
from bench.kit.oracles import Manifest, is_ready
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import MERGE, PODS, Refused, Site, until
from tensile.names import MIRRORED
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import LOOPBACK, UPPER

A, B = LOWERS
NAME = "faults-denials"
SAID_IN = 5.0
MOST_A_MINUTE = 12
MADE_IN = 7.5
BACK_IN = 30.0
MINUTE = 60.0
PATIENCE = 60.0
_ENFORCE = "pod-security.kubernetes.io/enforce"
Lift = Callable[[], Awaitable[object]]


class Place(NamedTuple):
    """The place of a kind of refusal: a namespace of that name in the upper cluster and in one lower cluster."""

    field: "Field"
    kind: "Kind"

    @property
    def namespace(self) -> str:
        """The name of the namespace."""
        return f"{self.field.rig.name}-{self.kind.name}"

    @property
    def below(self) -> Site:
        """The lower cluster."""
        return self.field.rig.sites[self.kind.lower]

    def path(self, plural: str, name: str = "", api: str = "api/v1") -> str:
        """Return the path of a collection of the namespace, or of an object in it."""
        return f"/{api}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


class Kind(NamedTuple):
    """One kind of refusal.

    `deny` starts it and returns a function that ends it; `words` are part of the cluster's message; `spec` is what the
    pods have beside their container, `above` are the upper objects that they need; `refused` is the resource that is
    not created, with the object's name unless the pods are refused.
    """

    name: str
    words: str
    deny: Callable[[Place], Awaitable[Lift]]
    spec: Mapping[str, Any] = MappingProxyType({})
    above: tuple[tuple[str, Manifest], ...] = ()
    refused: str = "pods"
    lower: str = A


def _quota(**hard: str) -> Callable[[Place], Awaitable[Lift]]:
    async def deny(place: Place) -> Lift:
        """Create a quota that allows no further object."""
        path = place.path("resourcequotas", "full")
        await place.below.call("POST", place.path("resourcequotas"), _named("full", spec={"hard": hard}))

        async def counts() -> bool:
            """Report whether the cluster has counted, so that it refuses for the right reason."""
            return bool((await place.below.call("GET", path)).get("status", {}).get("hard"))

        await until(counts, "the quota counts", PATIENCE)
        return lambda: place.below.delete(path)

    return deny


async def _limit_range(place: Place) -> Lift:
    limits = [{"type": "Container", "max": {"cpu": "1"}}]
    await place.below.call("POST", place.path("limitranges"), _named("small", spec={"limits": limits}))
    return lambda: place.below.delete(place.path("limitranges", "small"))


async def _pod_security(place: Place) -> Lift:
    path = f"/api/v1/namespaces/{place.namespace}"
    await place.below.call("PATCH", path, {"metadata": {"labels": {_ENFORCE: "restricted"}}}, MERGE)
    return lambda: place.below.call("PATCH", path, {"metadata": {"labels": {_ENFORCE: None}}}, MERGE)


def _webhook(way: str) -> Callable[[Place], Awaitable[Lift]]:
    async def deny(place: Place) -> Lift:
        """Register the webhook for the namespace's pods, and wait until it is called."""
        lift = await place.field.webhook.ask(place.below, place.namespace, way)

        async def is_asked() -> bool:
            """Report whether a dry-run creation of a pod is refused."""
            body = {"metadata": {"generateName": "try-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            with suppress(Refused):
                await place.below.call("POST", place.path("pods") + "?dryRun=All", body)
                return False
            return True

        await until(is_asked, "the webhook is asked", PATIENCE)
        return lift

    return deny


async def _rights(place: Place) -> Lift:
    return lambda: grant(place.below, place.namespace, place.field.limited)


def _proxied(fault: Refusing) -> Callable[[Place], Awaitable[Lift]]:
    async def deny(place: Place) -> Lift:
        """Let the proxy refuse the requests."""
        place.field.faults[place.namespace] = fault

        async def lift() -> None:
            """Let the requests pass."""
            del place.field.faults[place.namespace]

        return lift

    return deny


def _named(name: str, **content: Any) -> Manifest:
    return {"metadata": {"name": name}, **content}


_TWO_CPUS = {"containers": [{"name": "main", "image": "app:1", "resources": {"limits": {"cpu": "2"}}}]}
_MAP = ("configmaps", _named("settings", data={"key": "value"}))
_SECRET = ("secrets", _named("password", data={"key": "dmFsdWU="}))
_TOO_LARGE = Refusing(413, message="Request entity too large: limit is 3145728")
_INVALID = Refusing(
    422, message="Pod is invalid: spec.containers[0].image: Required value", causes=("FieldValueRequired",)
)
_BUSY = Refusing(429, retry_after=1, message="Too many requests, please try again later.")
KINDS = (
    Kind("quota", "exceeded quota: full", _quota(pods="0")),
    Kind("limit-range", "maximum cpu usage per Container is 1", _limit_range, _TWO_CPUS),
    Kind("pod-security", 'violates PodSecurity "restricted', _pod_security),
    Kind("webhook-no", "denied the request: no such thing here", _webhook("no")),
    Kind("webhook-no-503", "denied the request: not now", _webhook("not-now")),
    Kind("webhook-fails", "failed calling webhook", _webhook("fails")),
    Kind("webhook-late", "context deadline exceeded", _webhook("late")),
    Kind("rights", 'cannot create resource "pods"', _rights, lower=B),
    Kind("too-large", "limit is 3145728", _proxied(_TOO_LARGE)),
    Kind("invalid", "image: Required value", _proxied(_INVALID)),
    Kind("busy", "Too many requests", _proxied(_BUSY)),
    Kind(
        "config-map", "exceeded quota: full", _quota(configmaps="0"),
        {"volumes": [{"name": "c", "configMap": {"name": "settings"}}]}, (_MAP,), "configmaps/settings",
    ),
    Kind(
        "secret", "exceeded quota: full", _quota(secrets="0"),
        {"volumes": [{"name": "s", "secret": {"secretName": "password"}}]}, (_SECRET,), "secrets/password",
    ),
    Kind(
        "account", "exceeded quota: full", _quota(**{"count/serviceaccounts": "0"}),
        {"serviceAccountName": "robot"}, (("serviceaccounts", _named("robot")),), "serviceaccounts/robot",
    ),
)  # fmt: skip


class Field:
    """A rig whose engine runs, and the sources of its refusals."""

    def __init__(self, rig: Rig, webhook: Webhook, limited: str) -> None:
        self.rig = rig
        self.webhook = webhook
        self.limited = limited
        self.faults: dict[str, Refusing] = {}

    async def meet(self, asked: Asked) -> Fault:
        """Refuse the creation of lower pods in some namespaces."""
        is_it = asked.cluster != UPPER and (asked.verb, asked.kind) == ("create", "pods")
        return self.faults.get(asked.namespace, Passed()) if is_it else Passed()

    async def carried_out(self, _asked: Asked, _status: int) -> None:
        """Do nothing."""

    async def answered(self, _asked: Asked, _status: int) -> None:
        """Do nothing."""


class Sight(NamedTuple):
    """The state of an upper pod at a time, in monotonic seconds."""

    at: float
    pod: Manifest


class Trial:
    """One kind of refusal, applied to some pods."""

    def __init__(self, place: Place, pods: int) -> None:
        self.place = place
        self.names = [f"pod-{number}" for number in range(pods)]
        self.sights: dict[str, list[Sight]] = {name: [] for name in self.names}
        self.made: dict[str, float] = {}

    async def lay_out(self) -> None:
        """Create the namespace in both clusters, and the upper objects that the pods need."""
        for site in (self.place.field.rig.upper, self.place.below):
            await site.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.place.namespace}})
            await until(
                lambda site=site: _is_there(site, self.place.path("serviceaccounts", "default")), "an account", PATIENCE
            )
        for plural, body in self.place.kind.above:
            await self.place.field.rig.upper.call("POST", self.place.path(plural), body)

    async def go(self, hold: float) -> tuple[float, float]:
        """Refuse, create the pods, wait, end the refusal; return when it ended, and the seconds until all pods ran."""
        following = asyncio.create_task(self._follow())
        try:
            lift = await self.place.kind.deny(self.place)
            for name in self.names:
                self.made[name] = time.monotonic()
                await self.place.field.rig.upper.call("POST", self.place.path("pods"), self._pod(name))
            await asyncio.sleep(hold)
            lifted = time.monotonic()
            await lift()
            await until(self._all_run, f"{self.place.kind.name}: the pods run", PATIENCE)
            return lifted, time.monotonic() - lifted
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def tries(self, end: float) -> dict[str, list[float]]:
        """Return the times of attempts to create the refused objects until `end`, by their names."""
        resource, _, name = self.place.kind.refused.partition("/")
        found: dict[str, list[float]] = {one: [] for one in ([name] if name else self.names)}
        for write in self.place.field.rig.journal.writes:
            asked = write.asked
            is_it = (asked.verb, asked.kind, asked.namespace) == ("create", resource, self.place.namespace)
            if is_it and asked.cluster == self.place.kind.lower and asked.name in found and write.at <= end:
                found[asked.name].append(write.at)
        return found

    def made_below(self) -> list[float]:
        """Return the times at which the lower pods were created successfully."""
        return [
            write.at
            for write in self.place.field.rig.journal.writes
            if (write.asked.verb, write.asked.kind, write.asked.namespace) == ("create", "pods", self.place.namespace)
            and write.is_done
        ]

    async def events(self) -> dict[str, int]:
        """Count the engine's events about a refusal, by pod."""
        found = dict.fromkeys(self.names, 0)
        for one in await self.place.field.rig.upper.items(self.place.path("events")):
            is_ours = one.get("source", {}).get("component") == "tensile-kube" and one["type"] == "Warning"
            if is_ours and one["involvedObject"]["name"] in found and self.place.kind.words in one["message"]:
                found[one["involvedObject"]["name"]] += 1
        return found

    async def clear(self) -> None:
        """Delete the pods, and then the namespaces."""
        upper = self.place.field.rig.upper
        for name in self.names:
            await upper.delete(self.place.path("pods", name) + "?gracePeriodSeconds=1")

        async def are_gone() -> bool:
            """Report whether no pod is left."""
            return not await upper.items(self.place.path("pods"))

        await until(are_gone, "the pods are gone", PATIENCE)
        for site in (upper, self.place.below):
            await site.delete(f"/api/v1/namespaces/{self.place.namespace}")

    async def _follow(self) -> None:
        async for _, pod in self.place.field.rig.upper.watch(PODS.format(self.place.namespace)):
            if pod["metadata"]["name"] in self.sights:
                self.sights[pod["metadata"]["name"]].append(Sight(time.monotonic(), pod))

    async def _all_run(self) -> bool:
        return all(seen and is_ready(seen[-1].pod) for seen in self.sights.values())

    def _pod(self, name: str) -> Manifest:
        spec = {
            "nodeName": self.place.field.rig.nodes[self.place.kind.lower],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "app:1"}],
        }
        return {"metadata": {"name": name}, "spec": {**spec, **self.place.kind.spec}}


def said_at(sights: Iterable[Sight], words: str) -> float:
    """Return when an upper pod was first Pending with these words in its message and condition; inf for never."""
    moments = (one.at for one in sights if _says(one.pod.get("status", {}), words))
    return min(moments, default=float("inf"))


def busiest(moments: Sequence[float], window: float = MINUTE) -> int:
    """Return the most tries in any window of so many seconds."""
    return max((sum(0 <= later - one < window for later in moments) for one in moments), default=0)


def most(seconds: float) -> int:
    """Return the allowed tries of a pod in so many seconds: one more at once, and then one every five seconds."""
    return min(MOST_A_MINUTE, 2 + int(seconds / SAID_IN))


def judged(trial: Trial, hold: float, lifted: float, back: float, events: dict[str, int]) -> dict[str, Any]:
    """Return the outcome of one kind of refusal, with the failures."""
    words = trial.place.kind.words
    said = {name: said_at(seen, words) - trial.made[name] for name, seen in trial.sights.items()}
    tries = {name: busiest(moments) for name, moments in trial.tries(lifted).items()}
    made = max(trial.made_below(), default=float("inf")) - lifted
    failed = [name for name, seen in trial.sights.items() if any(_phase(one.pod) == "Failed" for one in seen)]
    broken = [f"{name}: said only after {seconds:.1f} s" for name, seconds in said.items() if seconds > SAID_IN]
    broken += [f"{name}: {number} tries in a minute" for name, number in tries.items() if number > most(hold)]
    broken += [f"{name}: tried once, and not again" for name, number in tries.items() if number < min(2, most(hold))]
    broken += [f"{name} Failed" for name in failed]
    broken += [f"{name}: {number} events" for name, number in events.items() if number != 1]
    broken += [f"made only {made:.1f} s after nothing refused it"] if made > MADE_IN else []
    broken += [f"runs only {back:.1f} s after nothing refused it"] if back > BACK_IN else []
    return {
        "kind": trial.place.kind.name,
        "pods": len(trial.names),
        "said_s": round(max(said.values()), 2),
        "tries_a_minute": max(tries.values()),
        "made_s": round(made, 2),
        "back_s": round(back, 2),
        "broken": [f"{trial.place.kind.name}: {one}" for one in broken],
    }


def _says(status: Manifest, words: str) -> bool:
    found = [one for one in status.get("conditions") or () if one["type"] == MIRRORED and one["status"] == "False"]
    told = any(words in one.get("message", "") and one.get("reason") == status.get("reason") for one in found)
    return status.get("phase") == "Pending" and told and words in status.get("message", "")


def _phase(pod: Manifest) -> str:
    return str(pod.get("status", {}).get("phase", ""))


async def _is_there(site: Site, path: str) -> bool:
    with suppress(Refused):
        return bool(await site.call("GET", path))
    return False


@asynccontextmanager
async def laid_out(sandbox: Sandbox, directory: Path) -> AsyncIterator[Field]:
    """Yield a field whose engine has all rights in the first lower cluster, and may create no pods in the second."""
    async with Rig(sandbox, directory) as rig:
        limited = f"{rig.name}-limited"
        text = topologies.kubeconfig(sandbox.clusters[B], limited, (), server=rig.proxies[B].url)
        (directory / f"{B}.kubeconfig").write_text(text)
        authority = sandbox.clusters[A].audit_log.parent / "pki"
        async with Webhook(authority, directory, LOOPBACK) as webhook, limited_user(rig.sites[B], limited):
            field = Field(rig, webhook, limited)
            rig.direct(field)
            rig.start()
            await rig.usable()
            yield field


async def denied(field: Field, kinds: Iterable[Kind], pods: int, hold: float) -> list[dict[str, Any]]:
    """Refuse requests in every way at once, and return the outcome of each."""
    trials = [Trial(Place(field, kind), pods) for kind in kinds]
    start = len(field.rig.journal)
    for trial in trials:
        await trial.lay_out()

    async def one(trial: Trial) -> dict[str, Any]:
        """Run one trial."""
        lifted, back = await trial.go(hold)
        found = judged(trial, hold, lifted, back, await trial.events())
        print(" ".join(f"{key}={value}" for key, value in found.items()), flush=True)
        return found

    found = await asyncio.gather(*(one(trial) for trial in trials))
    await asyncio.gather(*(trial.clear() for trial in trials))
    found[0]["broken"] += histories.unfenced(field.rig.journal.since(start))
    return found


def main() -> int:
    """Parse the arguments, run on an own sandbox, store the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pods", type=int, default=10, help="of each kind")
    parser.add_argument("--hold", type=float, default=65.0, help="seconds for which each refusal lasts")
    parser.add_argument("--kinds", default="", help="some of: " + ",".join(one.name for one in KINDS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    wanted = [kind for kind in KINDS if not given.kinds or kind.name in given.kinds.split(",")]

    async def scenario(sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
        """Run the selected kinds."""
        async with laid_out(sandbox, scratch) as field:
            runs = await denied(field, wanted, given.pods, given.hold)
        return {"hold_s": given.hold, "runs": runs, "broken": [words for one in runs for words in one["broken"]]}

    kubernetes, result = on_clusters(scenario)
    path = keep(given.results, NAME, kubernetes, result)
    return verdict("denials", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
