"""What has to be below before a pod is made there: its namespace, all that it names, and the account that it runs as.

Tokens of the upper cluster are not among it. They are asked for last, once nothing else is missing: a pod that waits
for another reason would have a credential lie below for nobody.
"""

from collections.abc import Iterable

from tensile.objects import Manifest
from tensile.reconcile import accounts, dependencies, namespaces, storage
from tensile.reconcile.claimsources import foreign_source
from tensile.reconcile.references import Reference
from tensile.world import Key, LowerWorld, Problem, World


def awaited(namespace: str, needs: Iterable[Reference], lower: LowerWorld, world: World) -> list[Key]:
    """Return the keys of what is not below yet; `needs` is what a pod of the upper `namespace` refers to."""
    needs = tuple(needs)
    found = [] if namespaces.ready(lower, namespace) else [namespaces.key_of(lower.name, namespace)]
    found += dependencies.missing(world, lower, namespace, needs)
    found += storage.missing(world, lower, namespace, needs)
    found += accounts.missing(world, lower, namespace, needs)
    return found


def refused(upper_pod: Manifest) -> Problem | None:
    """Return why a pod is not made below whatever is there: it names what exists in lower clusters alone."""
    for volume in upper_pod["spec"].get("volumes") or ():
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}
        source = foreign_source(template.get("spec") or {})
        if source:
            return Problem("ClaimNotMirrored", f"volume {volume['name']} is to be filled from {source}")
    return None
