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

from bench.faults.rejections import Webhook, grant, limited_user
from bench.kit import histories, topologies
from bench.kit.clusters import on_clusters
from bench.kit.faultproxy.faults import Fault, Passed
from bench.kit.faultproxy.faults import Refused as Refusing
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.oracles import Manifest, is_ready
from bench.kit.reporting import RESULTS, keep, verdict
from bench.kit.rig import LOWERS, Rig
from bench.kit.sites import MERGE, PODS, Refused, Site, until
from tensile.names import MIRRORED
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import LOOPBACK, UPPER

A, B = LOWERS
NAME = "faults-denials"
REPORTED_WITHIN = 5.0
MOST_A_MINUTE = 12
MADE_IN = 7.5
BACK_IN = 30.0
MINUTE = 60.0
PATIENCE = 60.0
_ENFORCE = "pod-security.kubernetes.io/enforce"
EndRefusal = Callable[[], Awaitable[object]]


class RefusalTarget(NamedTuple):
    """The place of a kind of refusal: a namespace of that name in the upper cluster and in one lower cluster."""

    field: "RefusalTrials"
    kind: "RefusalKind"

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


class RefusalKind(NamedTuple):
    """One kind of refusal.

    `deny` starts it and returns a function that ends it; `words` are part of the cluster's message; `spec` is what the
    pods have beside their container, `above` are the upper objects that they need; `refused` is the resource that is
    not created, with the object's name unless the pods are refused.
    """

    name: str
    message: str
    deny: Callable[[RefusalTarget], Awaitable[EndRefusal]]
    spec: Mapping[str, Any] = MappingProxyType({})
    above: tuple[tuple[str, Manifest], ...] = ()
    refused: str = "pods"
    lower: str = A


def _quota(**hard: str) -> Callable[[RefusalTarget], Awaitable[EndRefusal]]:
    async def deny(target: RefusalTarget) -> EndRefusal:
        """Create a quota that allows no further object."""
        path = target.path("resourcequotas", "full")
        await target.below.call("POST", target.path("resourcequotas"), _named("full", spec={"hard": hard}))

        async def counts() -> bool:
            """Report whether the cluster has counted, so that it refuses for the right reason."""
            return bool((await target.below.call("GET", path)).get("status", {}).get("hard"))

        await until(counts, "the quota counts", PATIENCE)
        return lambda: target.below.delete(path)

    return deny


async def _limit_range(target: RefusalTarget) -> EndRefusal:
    limits = [{"type": "Container", "max": {"cpu": "1"}}]
    await target.below.call("POST", target.path("limitranges"), _named("small", spec={"limits": limits}))
    return lambda: target.below.delete(target.path("limitranges", "small"))


async def _pod_security(target: RefusalTarget) -> EndRefusal:
    path = f"/api/v1/namespaces/{target.namespace}"
    await target.below.call("PATCH", path, {"metadata": {"labels": {_ENFORCE: "restricted"}}}, MERGE)
    return lambda: target.below.call("PATCH", path, {"metadata": {"labels": {_ENFORCE: None}}}, MERGE)


def _webhook(way: str) -> Callable[[RefusalTarget], Awaitable[EndRefusal]]:
    async def deny(target: RefusalTarget) -> EndRefusal:
        """Register the webhook for the namespace's pods, and wait until it is called."""
        end_refusal = await target.field.webhook.ask(target.below, target.namespace, way)

        async def is_asked() -> bool:
            """Report whether a dry-run creation of a pod is refused."""
            body = {"metadata": {"generateName": "try-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
            with suppress(Refused):
                await target.below.call("POST", target.path("pods") + "?dryRun=All", body)
                return False
            return True

        await until(is_asked, "the apiserver calls the webhook", PATIENCE)
        return end_refusal

    return deny


async def _rights(target: RefusalTarget) -> EndRefusal:
    return lambda: grant(target.below, target.namespace, target.field.limited)


def _proxied(fault: Refusing) -> Callable[[RefusalTarget], Awaitable[EndRefusal]]:
    async def deny(target: RefusalTarget) -> EndRefusal:
        """Let the proxy refuse the requests."""
        target.field.faults[target.namespace] = fault

        async def end_refusal() -> None:
            """Let the requests pass."""
            del target.field.faults[target.namespace]

        return end_refusal

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
    RefusalKind("quota", "exceeded quota: full", _quota(pods="0")),
    RefusalKind("limit-range", "maximum cpu usage per Container is 1", _limit_range, _TWO_CPUS),
    RefusalKind("pod-security", 'violates PodSecurity "restricted', _pod_security),
    RefusalKind("webhook-no", "denied the request: no such thing here", _webhook("no")),
    RefusalKind("webhook-no-503", "denied the request: not now", _webhook("not-now")),
    RefusalKind("webhook-fails", "failed calling webhook", _webhook("fails")),
    RefusalKind("webhook-late", "context deadline exceeded", _webhook("late")),
    RefusalKind("rights", 'cannot create resource "pods"', _rights, lower=B),
    RefusalKind("too-large", "limit is 3145728", _proxied(_TOO_LARGE)),
    RefusalKind("invalid", "image: Required value", _proxied(_INVALID)),
    RefusalKind("busy", "Too many requests", _proxied(_BUSY)),
    RefusalKind(
        "config-map", "exceeded quota: full", _quota(configmaps="0"),
        {"volumes": [{"name": "c", "configMap": {"name": "settings"}}]}, (_MAP,), "configmaps/settings",
    ),
    RefusalKind(
        "secret", "exceeded quota: full", _quota(secrets="0"),
        {"volumes": [{"name": "s", "secret": {"secretName": "password"}}]}, (_SECRET,), "secrets/password",
    ),
    RefusalKind(
        "account", "exceeded quota: full", _quota(**{"count/serviceaccounts": "0"}),
        {"serviceAccountName": "robot"}, (("serviceaccounts", _named("robot")),), "serviceaccounts/robot",
    ),
)  # fmt: skip


class RefusalTrials:
    """A rig whose engine runs, and the sources of its refusals."""

    def __init__(self, rig: Rig, webhook: Webhook, limited: str) -> None:
        self.rig = rig
        self.webhook = webhook
        self.limited = limited
        self.faults: dict[str, Refusing] = {}

    async def fault_for(self, request: ProxiedRequest) -> Fault:
        """Refuse the creation of lower pods in some namespaces."""
        is_it = request.cluster != UPPER and (request.verb, request.kind) == ("create", "pods")
        return self.faults.get(request.namespace, Passed()) if is_it else Passed()

    async def on_executed(self, _request: ProxiedRequest, _status: int) -> None:
        """Do nothing."""

    async def on_responded(self, _request: ProxiedRequest, _status: int) -> None:
        """Do nothing."""


class PodStatusAt(NamedTuple):
    """The state of an upper pod at a time, in monotonic seconds."""

    at: float
    pod: Manifest


class RefusalTrial:
    """One kind of refusal, applied to some pods."""

    def __init__(self, target: RefusalTarget, pods: int) -> None:
        self.target = target
        self.names = [f"pod-{number}" for number in range(pods)]
        self.pod_statuses: dict[str, list[PodStatusAt]] = {name: [] for name in self.names}
        self.created_at: dict[str, float] = {}

    async def create_objects(self) -> None:
        """Create the namespace in both clusters, and the upper objects that the pods need."""
        for site in (self.target.field.rig.upper, self.target.below):
            await site.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.target.namespace}})
            await until(
                lambda site=site: _is_there(site, self.target.path("serviceaccounts", "default")),
                "an account",
                PATIENCE,
            )
        for plural, body in self.target.kind.above:
            await self.target.field.rig.upper.call("POST", self.target.path(plural), body)

    async def run(self, hold: float) -> tuple[float, float]:
        """Refuse, create the pods, wait, end the refusal; return when it ended, and the seconds until all pods ran."""
        following = asyncio.create_task(self._follow())
        try:
            end_refusal = await self.target.kind.deny(self.target)
            for name in self.names:
                self.created_at[name] = time.monotonic()
                await self.target.field.rig.upper.call("POST", self.target.path("pods"), self._pod(name))
            await asyncio.sleep(hold)
            lifted = time.monotonic()
            await end_refusal()
            await until(self._all_run, f"{self.target.kind.name}: the pods run", PATIENCE)
            return lifted, time.monotonic() - lifted
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def attempts(self, end: float) -> dict[str, list[float]]:
        """Return the times of attempts to create the refused objects until `end`, by their names."""
        resource, _, name = self.target.kind.refused.partition("/")
        found: dict[str, list[float]] = {one: [] for one in ([name] if name else self.names)}
        for write in self.target.field.rig.journal.writes:
            request = write.request
            is_it = (request.verb, request.kind, request.namespace) == ("create", resource, self.target.namespace)
            if is_it and request.cluster == self.target.kind.lower and request.name in found and write.at <= end:
                found[request.name].append(write.at)
        return found

    def made_below(self) -> list[float]:
        """Return the times at which the lower pods were created successfully."""
        return [
            write.at
            for write in self.target.field.rig.journal.writes
            if (write.request.verb, write.request.kind, write.request.namespace)
            == ("create", "pods", self.target.namespace)
            and write.is_done
        ]

    async def events(self) -> dict[str, int]:
        """Count the engine's events about a refusal, by pod."""
        found = dict.fromkeys(self.names, 0)
        for one in await self.target.field.rig.upper.items(self.target.path("events")):
            is_ours = one.get("source", {}).get("component") == "tensile-kube" and one["type"] == "Warning"
            if is_ours and one["involvedObject"]["name"] in found and self.target.kind.message in one["message"]:
                found[one["involvedObject"]["name"]] += 1
        return found

    async def clear(self) -> None:
        """Delete the pods, and then the namespaces."""
        upper = self.target.field.rig.upper
        for name in self.names:
            await upper.delete(self.target.path("pods", name) + "?gracePeriodSeconds=1")

        async def are_gone() -> bool:
            """Report whether no pod is left."""
            return not await upper.items(self.target.path("pods"))

        await until(are_gone, "the pods are gone", PATIENCE)
        for site in (upper, self.target.below):
            await site.delete(f"/api/v1/namespaces/{self.target.namespace}")

    async def _follow(self) -> None:
        async for _, pod in self.target.field.rig.upper.watch(PODS.format(self.target.namespace)):
            if pod["metadata"]["name"] in self.pod_statuses:
                self.pod_statuses[pod["metadata"]["name"]].append(PodStatusAt(time.monotonic(), pod))

    async def _all_run(self) -> bool:
        return all(seen and is_ready(seen[-1].pod) for seen in self.pod_statuses.values())

    def _pod(self, name: str) -> Manifest:
        spec = {
            "nodeName": self.target.field.rig.nodes[self.target.kind.lower],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "app:1"}],
        }
        return {"metadata": {"name": name}, "spec": {**spec, **self.target.kind.spec}}


def reported_at(pod_statuses: Iterable[PodStatusAt], message: str) -> float:
    """Return when an upper pod was first Pending with these words in its message and condition; inf for never."""
    moments = (one.at for one in pod_statuses if _has_message(one.pod.get("status", {}), message))
    return min(moments, default=float("inf"))


def busiest(moments: Sequence[float], window: float = MINUTE) -> int:
    """Return the most tries in any window of so many seconds."""
    return max((sum(0 <= later - one < window for later in moments) for one in moments), default=0)


def most(seconds: float) -> int:
    """Return the allowed tries of a pod in so many seconds: one more at once, and then one every five seconds."""
    return min(MOST_A_MINUTE, 2 + int(seconds / REPORTED_WITHIN))


def judged(trial: RefusalTrial, hold: float, lifted: float, back: float, events: dict[str, int]) -> dict[str, Any]:
    """Return the outcome of one kind of refusal, with the failures."""
    message = trial.target.kind.message
    delays = {name: reported_at(seen, message) - trial.created_at[name] for name, seen in trial.pod_statuses.items()}
    tries = {name: busiest(moments) for name, moments in trial.attempts(lifted).items()}
    made = max(trial.made_below(), default=float("inf")) - lifted
    failed = [name for name, seen in trial.pod_statuses.items() if any(_phase(one.pod) == "Failed" for one in seen)]
    broken = [
        f"{name}: reported only after {seconds:.1f} s" for name, seconds in delays.items() if seconds > REPORTED_WITHIN
    ]
    broken += [f"{name}: {number} tries in a minute" for name, number in tries.items() if number > most(hold)]
    broken += [f"{name}: tried once, and not again" for name, number in tries.items() if number < min(2, most(hold))]
    broken += [f"{name} Failed" for name in failed]
    broken += [f"{name}: {number} events" for name, number in events.items() if number != 1]
    broken += [f"made only {made:.1f} s after nothing refused it"] if made > MADE_IN else []
    broken += [f"runs only {back:.1f} s after nothing refused it"] if back > BACK_IN else []
    return {
        "kind": trial.target.kind.name,
        "pods": len(trial.names),
        "said_s": round(max(delays.values()), 2),
        "tries_a_minute": max(tries.values()),
        "made_s": round(made, 2),
        "back_s": round(back, 2),
        "broken": [f"{trial.target.kind.name}: {one}" for one in broken],
    }


def _has_message(status: Manifest, message: str) -> bool:
    found = [one for one in status.get("conditions") or () if one["type"] == MIRRORED and one["status"] == "False"]
    has_condition = any(
        message in one.get("message", "") and one.get("reason") == status.get("reason") for one in found
    )
    return status.get("phase") == "Pending" and has_condition and message in status.get("message", "")


def _phase(pod: Manifest) -> str:
    return str(pod.get("status", {}).get("phase", ""))


async def _is_there(site: Site, path: str) -> bool:
    with suppress(Refused):
        return bool(await site.call("GET", path))
    return False


@asynccontextmanager
async def laid_out(sandbox: Sandbox, directory: Path) -> AsyncIterator[RefusalTrials]:
    """Yield a field whose engine has all rights in the first lower cluster, and may create no pods in the second."""
    async with Rig(sandbox, directory) as rig:
        limited = f"{rig.name}-limited"
        text = topologies.kubeconfig(sandbox.clusters[B], limited, (), server=rig.proxies[B].url)
        (directory / f"{B}.kubeconfig").write_text(text)
        authority = sandbox.clusters[A].audit_log.parent / "pki"
        async with Webhook(authority, directory, LOOPBACK) as webhook, limited_user(rig.sites[B], limited):
            field = RefusalTrials(rig, webhook, limited)
            rig.set_director(field)
            rig.start()
            await rig.wait_until_usable()
            yield field


async def denied(field: RefusalTrials, kinds: Iterable[RefusalKind], pods: int, hold: float) -> list[dict[str, Any]]:
    """Refuse requests in every way at once, and return the outcome of each."""
    trials = [RefusalTrial(RefusalTarget(field, kind), pods) for kind in kinds]
    start = len(field.rig.journal)
    for trial in trials:
        await trial.create_objects()

    async def one(trial: RefusalTrial) -> dict[str, Any]:
        """Run one trial."""
        lifted, back = await trial.run(hold)
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
    parser.add_argument("--pods", type=int, default=10, help="the number of pods for each kind of refusal")
    parser.add_argument("--hold", type=float, default=65.0, help="the seconds that each refusal lasts")
    parser.add_argument(
        "--kinds",
        default="",
        help="the kinds to run, separated by commas; default: all of " + ",".join(one.name for one in KINDS),
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    wanted = [kind for kind in KINDS if not args.kinds or kind.name in args.kinds.split(",")]

    async def scenario(sandbox: Sandbox, scratch: Path) -> dict[str, Any]:
        """Run the selected kinds."""
        async with laid_out(sandbox, scratch) as field:
            runs = await denied(field, wanted, args.pods, args.hold)
        return {"hold_s": args.hold, "runs": runs, "broken": [message for one in runs for message in one["broken"]]}

    kubernetes, result = on_clusters(scenario)
    path = keep(args.results, NAME, kubernetes, result)
    return verdict("denials", result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
