"""A pod that does not exist yet, as the upper scheduler will see it: with what admission and the engine add to it.

Who asks whether a pod fits asks about the pod that is created, not about the file: the webhook prepares what carries
the label `virtual-pod`, and where there is no webhook the engine adds the tolerations that such a pod lacks.
"""

from tensile.objects import Manifest, metadata
from tensile.policy.admission import is_prepared_for, prepared, terms_of
from tensile.policy.moving import Unprepared
from tensile.reconcile.tolerations import lacking_for, tolerations_for_upper
from tensile.topology import Topology


def admitted(pod: Manifest, topology: Topology) -> Manifest:
    """Return a pod as it waits for a node; the very same one where nothing is done to it."""
    terms = terms_of(topology)
    if not is_prepared_for(pod, metadata(pod).get("namespace") or "default", terms):
        return pod
    if topology.webhook.enabled and topology.webhook.is_reachable:
        try:
            return prepared(pod, terms)
        except Unprepared:
            pass  # it is created as it is, and treated as one that no webhook saw
    spec = pod["spec"]
    if not lacking_for(spec.get("tolerations") or (), terms.taints):
        return pod
    return {**pod, "spec": {**spec, "tolerations": tolerations_for_upper(pod, terms.taints)}}
