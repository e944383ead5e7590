"""The engine's connection to one lower cluster: its caches, credentials, heartbeat and events.

The upper side of a lower (its bound pods, the Node, the lease) works without the lower cluster. Credentials that cannot
be read, or a cluster that does not respond, must show on the Node and affect nothing else.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import orjson
import structlog

from tensile.engine import lower_transitions
from tensile.engine.caches import bound_feed, lower_feeds, lower_world
from tensile.engine.leader_election import BOTH_UNDO
from tensile.errors import ClusterError, TensileError
from tensile.kube import net
from tensile.kube.cluster import Cluster
from tensile.kube.credentials import (
    NAME_ONE,
    SERVICE_ACCOUNT,
    Access,
    AccessError,
    CredentialsUnavailable,
    SecretKubeconfig,
    account_namespace,
    context_namespace,
    from_kubeconfig,
    in_cluster,
)
from tensile.kube.fleet import Fleet, OpenCluster
from tensile.kube.net import cancel_and_wait, insist, supervised
from tensile.kube.store import Cache, Delta
from tensile.kubelet.node.lease import Heartbeat
from tensile.kubelet.node.status import SILENT_AFTER
from tensile.kubelet.pods.event_mirror import EventMirror
from tensile.kubelet.pods.events import OF_CLAIMS, OF_PODS
from tensile.kubelet.pods.rule import UNREACHABLE_AFTER
from tensile.kubelet.stats.collector import StatsCollector
from tensile.names import LOWER_UID
from tensile.objects import EVENT, UPPER, Manifest, annotations, uid
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.world import LowerWorld, NamespaceNaming, World, mapping_note
from tensile.topology import Lower, Upper, parse

_RETRY_DELAY = 5.0
_VERSION_INTERVAL = 300.0
"""Seconds between two requests for the version of a lower cluster, which an upgrade changes while the engine runs."""
_POLL_INTERVAL = 0.5
_UNREACHABLE_LIMITS = (0.0, SILENT_AFTER, UNREACHABLE_AFTER)
_log = structlog.get_logger("tensile.lower")


class ClusterAccess(NamedTuple):
    """How to access clusters; paths are relative to `directory`.

    `upper_kubeconfig` and `upper_context`, if given, are used instead of the topology's. `instead` is advice for a
    process that runs outside of a pod, `account` the directory with a pod's ServiceAccount.
    """

    directory: Path
    allow_exec_plugins: bool = False
    upper_kubeconfig: str | None = None
    upper_context: str | None = None
    instead: str = NAME_ONE
    account: Path = SERVICE_ACCOUNT

    async def upper_access(self, upper: Upper) -> Access:
        """Return the access to the upper cluster, in-cluster without a kubeconfig; raises AccessError."""
        path, context = self._upper_kubeconfig(upper)
        try:
            if path is None:
                return await in_cluster(directory=self.account, instead=self.instead)
            return await self.access(path, context)
        except AccessError as error:
            raise AccessError(f"upper: {error.what}", error.advice) from None

    def upper_namespace(self, upper: Upper) -> str:
        """Return the namespace of the upper kubeconfig's context, "" for none and in-cluster; raises AccessError."""
        path, context = self._upper_kubeconfig(upper)
        try:
            return "" if path is None else context_namespace(self.directory / path, context)
        except AccessError as error:
            raise AccessError(f"upper: {error.what}", error.advice) from None

    def _upper_kubeconfig(self, upper: Upper) -> tuple[str | None, str | None]:
        """Return the kubeconfig of the upper cluster and its context."""
        if self.upper_kubeconfig is not None:
            return self.upper_kubeconfig, self.upper_context
        return upper.kubeconfig, upper.context

    def is_inside(self, upper: Upper) -> bool:
        """Report whether this process accesses the upper cluster in-cluster."""
        return upper.kubeconfig is None and self.upper_kubeconfig is None

    async def lower_access(self, spec: Lower, secrets: Cache) -> Access:
        """Return the access to a lower cluster; `secrets` are the upper's. Raises AccessError."""
        in_secret = secret_kubeconfig_of(spec, secrets)
        return await (self.access(spec.kubeconfig or "", spec.context) if in_secret is None else in_secret.access())

    async def access(self, kubeconfig: str, context: str | None) -> Access:
        """Return the access described by a kubeconfig; raises AccessError."""
        path = self.directory / kubeconfig
        return await from_kubeconfig(path, context, allow_exec_plugins=self.allow_exec_plugins)


def secret_kubeconfig_of(spec: Lower, secrets: Cache) -> SecretKubeconfig | None:
    """Return the kubeconfig that a lower has in a Secret, None for one in a file; `secrets` are the upper's."""
    ref = spec.kubeconfig_secret
    return None if ref is None else SecretKubeconfig(secrets, ref, spec.context)


def placeholder_spec(node: Manifest) -> Lower:
    """Return the spec of a lower of which only an orphaned Node of ours is known: every field has its default."""
    name = node["metadata"]["name"]
    entry = {"name": "left-behind", "kubeconfig": "none", "node": {"name": name}}
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "left-behind", "lowers": [entry]}
    topology = parse(orjson.dumps(file).decode(), name=f"Node {name}")
    return topology.lowers[0].model_copy(update={"name": f"({name})"})


class LowerConnection:
    """One lower cluster; `wake` enqueues all of its keys."""

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        cluster_access: ClusterAccess,
        now: Callable[[], datetime],
        wake: Callable[[str], None],
    ) -> None:
        self._world = world
        self._fleet = fleet
        self._cluster_access = cluster_access
        self._now = now
        self._wake = wake
        self._tasks: list[asyncio.Task[None]] = []
        self._connecting: asyncio.Task[None] | None = None
        self.events: EventMirror | None = None
        self._begun_at = asyncio.get_running_loop().time()
        self._secret_kubeconfig: SecretKubeconfig | None = None
        self._secret_changed = asyncio.Event()
        self._watches_secret = False
        self._objection = ""
        self._access_known: Access | None = None
        self.lower: LowerWorld
        self.meter: StatsCollector

    def begin(
        self,
        spec: Lower,
        *,
        engine: str = "",
        connect: bool = True,
        remaps: bool = False,
        busy: Callable[[str], bool] | None = None,
    ) -> None:
        """Add the lower to the world and start its tasks, and return at once, whether the cluster responds or not.

        Without `connect` only an orphaned Node is known of it, and is kept. With `remaps` the namespace mapping of the
        topology counts, not the one recorded on its Node: only for a lower without objects of ours. With `engine`, the
        identity of this engine, the Node's Lease is renewed. With `busy`, which reports whether a lower has other work,
        events of its pods are mirrored to the upper cluster.
        """
        naming = NamespaceNaming(self._world.topology.name, self._world.owner.mark)
        self.lower = self._world.lowers[spec.name] = lower_world(spec, naming, self._world.upper.namespaces)
        self.lower.connected = self.lower.in_topology = connect
        self.lower.mapping_known = remaps or not connect
        self.lower.silence_is_evidence = False
        self.lower.was_identified = False
        self._note_identified()
        for cache in (self.lower.upper_pods, self.lower.pods, self.lower.namespaces):
            cache.on_sync(self._learn_mapping)
        self.lower.upper_account = self._world.upper.account
        self.meter = StatsCollector(self.lower, self._world.owner, self._cluster, _log)
        self._secret_kubeconfig = secret_kubeconfig_of(spec, self._world.upper.secrets)
        self._fleet.follow(bound_feed(self.lower))
        if connect:
            self._connecting = supervised(f"connection to {spec.name}", self._connect)
            self._tasks.append(self._connecting)
        if connect and self._secret_kubeconfig is not None:
            self._watches_secret = True
            self._world.upper.secrets.subscribe(self._note_secret)
            self._world.upper.secrets.on_sync(self._secret_changed.set)
            self._tasks.append(
                supervised(f"credentials of {spec.name}", partial(self._follow_credentials, self._secret_kubeconfig))
            )
        upper = self._fleet[UPPER].cluster
        if connect and busy is not None:
            self.events = EventMirror(self.lower, self._world, upper, partial(busy, spec.name))
            self._tasks.append(supervised(f"events of {spec.name}", self.events.run))
        if engine:
            heartbeat = Heartbeat(
                upper,
                self.lower.node,
                self._node_uid,
                self._now,
                _log_heartbeat,
                engine=engine,
                shared=self._note_other_engine,
            )
            self._tasks.append(supervised(f"lease of {self.lower.node}", heartbeat.run))
            self._tasks.append(supervised(f"version of {spec.name}", self._follow_version))

    def watch_events(self) -> None:
        """Watch the events of an open cluster that its controllers need."""
        opened = self._fleet.get(self.lower.name)
        if self.events is None or opened is None:
            return
        opened.tail(EVENT, OF_PODS, self.events.on_event)
        if "PV" in self.lower.spec.controllers:
            opened.tail(EVENT, OF_CLAIMS, self.events.on_event)

    def keep_connection(self, reason: str) -> None:
        """Keep the present connection; `reason` is shown on the Node: why the topology's is not used, "" for none."""
        self._objection = reason
        self._warn(reason or (self._secret_kubeconfig.error if self._secret_kubeconfig is not None else ""))

    def limit(self) -> None:
        """Apply `qps` and `burst` of the lower to its connection, if that is open."""
        opened = self._fleet.get(self.lower.name)
        if opened is not None:
            opened.cluster.limit(self.lower.spec.qps, self.lower.spec.burst)

    async def complete(self) -> None:
        """Return when the cluster has responded and every cache has its first list."""
        if self._connecting is not None:
            await self._connecting
        if self.lower.connected:
            await self._fleet.synced(self.lower.name)
        self._learn_mapping()

    async def end(self) -> None:
        """Leave the lower: stop all tasks and remove it from the world."""
        await cancel_and_wait(*self._tasks)
        if self._watches_secret:
            self._world.upper.secrets.unsubscribe(self._note_secret, self._secret_changed.set)
        await self._fleet.leave(UPPER, self.lower.upper_pods)
        if self.lower.name in self._fleet:
            await self._fleet.close(self.lower.name)
        self._world.lowers.pop(self.lower.name, None)

    def refresh(self) -> bool:
        """Update the state of the connection; report whether that affects decisions."""
        lower = self.lower
        before = _decision_inputs(lower)
        self._note_identified()
        self._learn_mapping()
        opened = self._fleet.get(lower.name)
        if opened is not None:
            lower.unreachable_seconds = opened.unreachable_seconds
            lower.silence_is_evidence = opened.access_age > UNREACHABLE_AFTER
            lower.access_error = opened.credential_error
            health = opened.health
            lower.is_wrong, lower.is_shared, lower.is_excessive = health.wrong, health.shared, health.excessive
            lower.is_unproven = bool(health.unproven)
            lower.denied = opened.denied or (f"{lower.name}: {health.unproven}" if lower.is_unproven else "")
            lower.outage_error = health.error if lower.unreachable_seconds > SILENT_AFTER else ""
            self._note_account(opened.cluster.access)
        elif lower.connected:
            lower.unreachable_seconds = asyncio.get_running_loop().time() - self._begun_at
        return _decision_inputs(lower) != before

    async def _connect(self) -> None:
        """Open the connection as soon as its credentials can be read; then read the version."""
        lower = self.lower
        if lower.name not in self._fleet:
            access = await self._access()
            self._learn_mapping()
            self._note_identified()
            self._open(access, self._known_identity())
            self._secret_changed.set()
            lower.access_error = ""
        opened = self._fleet[lower.name]
        self._note_account(opened.cluster.access)
        await self._identified(opened)
        lower.identity = opened.identity
        lower.was_identified = True
        if not lower.version:
            lower.version = await insist(opened.cluster.version, ClusterError, lambda: _RETRY_DELAY)
        self._wake(lower.name)

    async def _follow_version(self) -> None:
        """Follow upgrades of the cluster."""
        while True:
            await asyncio.sleep(_VERSION_INTERVAL)
            opened, known = self._fleet.get(self.lower.name), self.lower.version
            if opened is not None and known:
                with suppress(ClusterError):
                    self.lower.version = await opened.cluster.version()
            if self.lower.version != known:
                self._wake(self.lower.name)

    def _note_account(self, access: Access) -> None:
        """Record the namespace of the account whose credential is used, if that has changed."""
        if access is not self._access_known:
            self._access_known = access
            self.lower.account = account_namespace(access)

    def _open(self, access: Access, pin: str) -> None:
        self._note_account(access)
        spec, world = self.lower.spec, self._world
        feeds = lower_feeds(self.lower, world.owner, places=world.topology.places)
        calls = net.parts(len(world.topology.lowers), net.soft_limit()).calls
        self._fleet.open(spec.name, access, feeds, qps=spec.qps, burst=spec.burst, connections=calls, pin=pin)
        self.watch_events()

    def _learn_mapping(self) -> None:
        """Determine the namespace mapping of the lower as soon as it is certain; nothing is written before."""
        lower = self.lower
        if lower_transitions.learn_mapping(lower, self._world) and lower.naming != lower_transitions.requested_mapping(
            lower.spec, self._world
        ):
            in_force = mapping_note(lower.naming)
            _log.warning(
                "namespace mapping cannot change yet, the previous one stays active", lower=lower.name, mapping=in_force
            )

    def _known_identity(self) -> str:
        """Return the identity of the cluster as recorded on the Node, by this engine or an earlier one."""
        node = self._node()
        return annotations(node).get(LOWER_UID, "") if node else ""

    def _note_identified(self) -> None:
        """Count the lower as identified if its Node names a cluster."""
        self.lower.was_identified = self.lower.was_identified or bool(self._known_identity())

    async def _identified(self, opened: OpenCluster) -> None:
        """Wait for the cluster's identity; another one than the recorded one is accepted while no pods are bound."""
        lower, health = self.lower, opened.health
        while not opened.is_identified:
            is_empty = lower.upper_pods.synced and not lower.is_bound
            if health.wrong and not health.shared and is_empty:
                _log.warning("lower cluster without pods was replaced by another cluster", lower=lower.name)
                opened.cluster.identity.accept_any()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_INTERVAL):
                    await opened.identified()

    async def _access(self) -> Access:
        """Return the credentials; retries indefinitely."""
        while True:
            try:
                return await self._credentials()
            except TensileError as error:
                if str(error) != self.lower.access_error:
                    self.lower.access_error = str(error)
                    _log.error("cannot connect to lower cluster", lower=self.lower.name, error=str(error))
                    self._wake(self.lower.name)
                last_error = error
            await self._wait_before_retry(last_error)

    async def _wait_before_retry(self, error: TensileError) -> None:
        """Wait until rejected credentials may have changed; for a fixed time if no event reports that."""
        changed = asyncio.Event()
        if isinstance(error, CredentialsUnavailable) and not error.uses_plugin:
            with self._fleet.watcher.watch(error.files, changed.set):
                await changed.wait()
        elif isinstance(error, AccessError) and self._secret_kubeconfig is not None:
            self._secret_changed.clear()
            if not self._secret_kubeconfig.is_other():
                await self._secret_changed.wait()
        else:
            await asyncio.sleep(_RETRY_DELAY if self._secret_kubeconfig is None else _POLL_INTERVAL)

    def _check_descriptors(self) -> None:
        """Raise TensileError if the lowers before this one in the file leave too few descriptors."""
        names, limit = [spec.name for spec in self._world.topology.lowers], net.hard_limit()
        count = names.index(self.lower.name) + 1 if self.lower.name in names else 0
        if net.shortage(count, limit):
            raise TensileError(f"not connected: {net.shortage(len(names), limit)}")

    async def _credentials(self) -> Access:
        """Return the credentials once the upper objects that they need are listed; others may never be.

        Raises TensileError, also if there are too few descriptors for another cluster.
        """
        self._check_descriptors()
        await self._fleet[UPPER].listed(self._world.upper.nodes)
        if self._secret_kubeconfig is not None:
            await self._fleet[UPPER].listed(self._world.upper.secrets)
            return await self._secret_kubeconfig.access()
        return await self._cluster_access.lower_access(self.lower.spec, self._world.upper.secrets)

    async def _follow_credentials(self, secret_kubeconfig: SecretKubeconfig) -> None:
        """Replace the connection to the same cluster when the Secret with its kubeconfig changes.

        The caches are kept. A bad Secret is only reported.
        """
        while True:
            await self._secret_changed.wait()
            self._secret_changed.clear()
            opened = self._fleet.get(self.lower.name)
            if opened is not None:
                access = await secret_kubeconfig.refresh()
                self._warn(self._objection or secret_kubeconfig.error)
                if access is not None:
                    await opened.replace(access)
                    _log.info("kubeconfig changed, reconnecting", lower=self.lower.name, origin=access.origin)

    def _note_secret(self, delta: Delta) -> None:
        """Record a change of the Secret with the kubeconfig."""
        ref = self.lower.spec.kubeconfig_secret
        if ref is not None and (delta.entry.namespace, delta.entry.name) == (ref.namespace, ref.name):
            self._secret_changed.set()

    def _warn(self, message: str) -> None:
        """Report on the Node and in the log, once, what is wrong with the configured credentials."""
        if message != self.lower.warning:
            self.lower.warning = message
            if message:
                _log.warning("kubeconfig refused", lower=self.lower.name, error=message)
            self._wake(self.lower.name)

    def _note_other_engine(self, engine: str) -> None:
        """Report in the log and in the status that another engine works on the same node, "" that none does."""
        self.lower.other_engine = engine
        if engine:
            _log.warning(f"another engine renews this node lease, and {BOTH_UNDO}", node=self.lower.node, engine=engine)
        else:
            _log.info("no other engine renews the node lease any more", node=self.lower.node)

    def _cluster(self) -> Cluster | None:
        """Return the connection to the cluster, None before there is one."""
        opened = self._fleet.get(self.lower.name)
        return opened.cluster if opened is not None else None

    def _node_uid(self) -> str:
        node = self._node()
        return uid(node) if node else ""

    def _node(self) -> Manifest:
        """Return the lower's Node, {} if there is none of ours."""
        entry = self._world.upper.nodes.get("", self.lower.node)
        node = entry.manifest() if entry is not None else {}
        return node if node and is_ours(node, self._world.owner) else {}


def _decision_inputs(lower: LowerWorld) -> tuple[object, ...]:
    """Return what decisions depend on in a lower's connection state."""
    connection_state = (
        lower.access_error,
        lower.denied,
        lower.is_withheld,
        lower.is_wrong,
        lower.is_shared,
        lower.silence_is_evidence,
        lower.account,
    )
    return (
        *connection_state,
        lower.was_identified,
        lower.mapping_known,
        lower.is_excessive,
        *(lower.unreachable_seconds > limit for limit in _UNREACHABLE_LIMITS),
    )


def _log_heartbeat(node: str, error: ClusterError | None) -> None:
    if error is None:
        _log.info("node lease renewed again", node=node)
    else:
        _log.warning("node lease not renewed", node=node, error=str(error))
