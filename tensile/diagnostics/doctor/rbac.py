"""Checks which rights the engine lacks in a cluster, and prints the commands that grant them."""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby
from shlex import quote

from tensile.diagnostics.doctor.facts import ClusterFacts, Facts, Finding, Level
from tensile.engine.permissions import Permission
from tensile.kubelet.stats.usage import NODE_METRICS
from tensile.objects import UPPER

CHECK = "rights"
_ACCOUNT = "system:serviceaccount:"
_DIGITS = 8


def permitted(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield the missing rights; those that the engine requires come in one finding, optional ones by what they cost."""
    if not side.is_in:
        return
    if side.missing is None:
        error = side.answers["rights"].error if "rights" in side.answers else "no answer in time"
        advice = "let the user create selfsubjectaccessreviews, as ClusterRole system:basic-user does for everybody"
        yield Finding(side.name, CHECK, Level.WARN, f"its permissions cannot be read ({error})", advice)
        return
    needed = [right for right in side.missing if not right.lost]
    extra = [right for right in side.missing if right.lost]
    if needed:
        yield Finding(side.name, CHECK, Level.FAIL, f"missing: {_listed(needed)}", _granted(side, needed, facts))
    for lost, rights in groupby(extra, lambda right: right.lost):
        lacking = list(rights)
        what = f"missing: {_listed(lacking)}: without it there is none of this: {lost}"
        yield Finding(side.name, CHECK, Level.WARN, what, _granted(side, lacking, facts))
    if not side.missing:
        yield Finding(side.name, CHECK, Level.OK, "all permissions that this topology needs")


def _listed(rights: Iterable[Permission]) -> str:
    """Return the missing rights, each with its purpose."""
    return "; ".join(f"{', '.join(right.verbs)} {_object(right)} ({right.purpose})" for right in rights)


def _granted(side: ClusterFacts, rights: list[Permission], facts: Facts) -> str:
    """Return the commands that grant rights; rights with the same verbs share a role.

    kubectl resolves the resources, so it cannot create a role for the metrics API while no server provides that.
    """
    name, subject = f"tensile-{facts.topology.name}-{side.name or 'upper'}", _subject(side.user)
    whose = "the upper cluster" if side.name == UPPER else f"cluster {side.name}"
    later = ", once metrics-server is installed" * any(right.kind.api == NODE_METRICS.api for right in rights)
    lines = [f"as an administrator of {whose}{later}:"]
    for (namespace, one, verbs), group in groupby(sorted(rights, key=_group), _group):
        resources = ",".join(quote(_resource(right)) for right in group)
        rules = f"--verb={','.join(verbs)} --resource={resources}{f' --resource-name={quote(one)}' if one else ''}"
        role, kind = f"{name}-{_digest(rules, subject)}", "role" if namespace else "clusterrole"
        scope = f"-n {quote(namespace)} " if namespace else ""
        lines.append(f"kubectl {scope}create {kind} {role} {rules}")
        lines.append(f"kubectl {scope}create {kind}binding {role} --{kind}={role} {subject}")
    return "\n".join(lines)


def _digest(*words: str) -> str:
    """Return a short hash of what a role grants to whom.

    It makes role names distinct: a role that was created for other rights already exists, and stays.
    """
    return sha256("\0".join(words).encode()).hexdigest()[:_DIGITS]


def _group(right: Permission) -> tuple[str, str, tuple[str, ...]]:
    return right.namespace, right.name, right.verbs


def _object(right: Permission) -> str:
    """Return the name of a resource, or of the one object that a right is for."""
    return f"{_resource(right)} {right.name}" if right.name else _resource(right)


def _resource(right: Permission) -> str:
    """Return a resource in kubectl's notation: pods/log, endpointslices.discovery.k8s.io."""
    if right.kind.plural == "*":
        return "*.*"
    group = f".{right.group}" if right.group else ""
    tail = f"/{right.subresource}" if right.subresource else ""
    return f"{right.kind.plural}{group}{tail}"


def _subject(user: str) -> str:
    """Return kubectl's option for the user or account that gets a right."""
    if user.startswith(_ACCOUNT):
        return f"--serviceaccount={quote(user.removeprefix(_ACCOUNT))}"
    return f"--user={quote(user)}" if user else "--user=USER"
