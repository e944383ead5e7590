"""Checks who else runs pods in the namespaces of mirrored pods, and what the topology would expose to them.

The defaults assume a lower cluster of one's own: a namespace of the same name belongs to the same tenant, and whoever
may read there may read the copies. Pods of others in those namespaces are the visible sign that this may be wrong.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from tensile.diagnostics.doctor.facts import (
    POLICIES,
    SPACES,
    STRANGERS,
    ClusterFacts,
    Facts,
    Finding,
    Level,
    QueryAnswer,
    owner,
)
from tensile.names import prefixed
from tensile.objects import UPPER
from tensile.topology import Lower, Topology

MOST = 20
"""The largest number of a lower's namespaces that are inspected; each takes a query of its own."""
_TOLD = 5
_ACCOUNT = "system:serviceaccount:"


def places(spec: Lower, topology: Topology, above: Iterable[str], below: Iterable[str]) -> dict[str, str]:
    """Return the lower namespaces that mirrored pods run in, by upper namespace."""
    there = set(below)
    names = sorted(set(above) - set(topology.exclude_namespaces))
    is_prefixed = spec.namespaces.mapping == "prefix"
    found = {name: prefixed(topology.name, name) if is_prefixed else name for name in names}
    return {upper: lower for upper, lower in found.items() if lower in there}


def tenanted(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether others run pods in the namespaces of mirrored pods.

    If they do, also yield the settings that assume that they do not.
    """
    if side.name == UPPER or not side.is_in:
        return
    spec, upper = facts.spec(side.name), facts.upper
    asked = [answers.answers.get(SPACES, QueryAnswer(error="not told in time")) for answers in (upper, side)]
    if any(one.error for one in asked) or STRANGERS not in side.answers or side.value(STRANGERS) is None:
        why = next(
            (one.error for one in (*asked, side.answers.get(STRANGERS, QueryAnswer())) if one.error), "not in time"
        )
        yield Finding(side.name, "tenants", Level.SKIP, f"not checked: namespaces and pods cannot be read ({why})")
        return
    where = places(spec, facts.topology, upper.items(SPACES), side.items(SPACES))
    mark = owner(upper, facts.topology).mark
    strangers = Counter(namespace for namespace, of in side.items(STRANGERS) if of != mark)
    yield from _own(side, where)
    shared = {name: strangers[name] for name in sorted(where.values()) if strangers[name]}
    if not shared:
        looked = f"in {MOST} of {len(where)}" if len(where) > MOST else "in the"
        what = f"no pods of others are {looked} namespaces that pods from the upper cluster go to"
        yield Finding(side.name, "tenants", Level.OK, what)
        return
    yield from _shared(spec, _listed(shared))


def unprotected(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield NetworkPolicies of the upper cluster, which do not apply to its pods in a lower cluster."""
    if side.name == UPPER or not side.is_in:
        return
    upper = facts.upper
    where = places(facts.spec(side.name), facts.topology, upper.items(SPACES), side.items(SPACES))
    policies = Counter(namespace for namespace in upper.items(POLICIES) if namespace in where)
    if policies:
        named = _listed(dict(sorted(policies.items())))
        what = f"NetworkPolicies of the upper cluster are not mirrored, and do not apply to its pods here: {named}"
        advice = f"create equivalent policies in {side.name}, in the namespaces where these pods run"
        yield Finding(side.name, "network", Level.WARN, what, advice)


def _shared(spec: Lower, names: str) -> Iterator[Finding]:
    """Yield each setting that assumes that others do not use these namespaces."""
    if spec.namespaces.mapping == "same":
        what = f"others run pods in namespaces that pods from the upper cluster go to, and count as one tenant: {names}"
        advice = (
            "where they are another tenant's: give the lower namespaces: {mapping: prefix}, once no mirrored pod is "
            "left there, or keep those namespaces out by excludeNamespaces"
        )
    else:
        what = f"others run pods in namespaces that were made for pods from the upper cluster: {names}"
        advice = "revoke the permission to create pods there from their creators"
    yield Finding(spec.name, "tenants", Level.WARN, what, advice)
    if spec.service_accounts.identity == "upper":
        what = f"tokens of the upper cluster are where others can read them (serviceAccounts.identity: upper): {names}"
        advice = f"give {spec.name} serviceAccounts: {{identity: lower}} unless its pods call the upper cluster"
        yield Finding(spec.name, "tenants", Level.WARN, what, advice)
    if "RBAC" in spec.controllers:
        what = f"accounts have permissions where others can run pods as them (controllers: RBAC): {names}"
        advice = f"leave RBAC out of controllers of {spec.name} unless its pods call the lower cluster"
        yield Finding(spec.name, "tenants", Level.WARN, what, advice)


def _own(side: ClusterFacts, where: dict[str, str]) -> Iterator[Finding]:
    """Yield upper namespaces that map to the lower namespace of the engine's own account."""
    namespace = side.user.removeprefix(_ACCOUNT).partition(":")[0] if side.user.startswith(_ACCOUNT) else ""
    for upper in (above for above, below in where.items() if namespace and below == namespace):
        what = f"namespace {upper} of the upper cluster leads to {namespace}, where the engine's own account is"
        advice = "nothing of it is mirrored: run its pods in another namespace, or keep the account in one of its own"
        yield Finding(side.name, "tenants", Level.WARN, what, advice)


def _listed(shared: dict[str, int]) -> str:
    """Return namespaces with their counts, cut off after the first ones."""
    told = [f"{name} ({count})" for name, count in list(shared.items())[:_TOLD]]
    return ", ".join(told) + (f" and {len(shared) - _TOLD} more" if len(shared) > _TOLD else "")
