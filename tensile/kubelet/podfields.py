"""What becomes of every field of a pod on its way down, and of its status on its way up.

A table and not code, so that it can be read beside the API's reference and a test can hold it against the schema: a
field without a verdict fails that test. Fields that no schema knows yet are kept on the way down (an older apiserver
prunes them) and left out on the way up (they may be immutable, or the lower cluster's own business).
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Verdict(Enum):
    """What happens to a field."""

    KEEP = "kept as it is"
    DROP = "left out"
    MAP = "rewritten by a rule"
    LATER = "not at creation, afterwards through a subresource"


METADATA: Mapping[str, Verdict] = MappingProxyType(
    {
        "name": Verdict.KEEP,
        "namespace": Verdict.MAP,
        "labels": Verdict.MAP,
        "annotations": Verdict.MAP,
        "ownerReferences": Verdict.MAP,
        "creationTimestamp": Verdict.DROP,
        "deletionGracePeriodSeconds": Verdict.DROP,
        "deletionTimestamp": Verdict.DROP,
        "finalizers": Verdict.DROP,
        "generateName": Verdict.DROP,
        "generation": Verdict.DROP,
        "managedFields": Verdict.DROP,
        "resourceVersion": Verdict.DROP,
        "selfLink": Verdict.DROP,
        "uid": Verdict.DROP,
    }
)
"""ObjectMeta. A resourceVersion makes a create fail; finalizers below would be waited for by nobody."""

SPEC: Mapping[str, Verdict] = MappingProxyType(
    {
        "activeDeadlineSeconds": Verdict.KEEP,
        "affinity": Verdict.MAP,
        "automountServiceAccountToken": Verdict.MAP,
        "containers": Verdict.MAP,
        "dnsConfig": Verdict.KEEP,
        "dnsPolicy": Verdict.KEEP,
        "enableServiceLinks": Verdict.KEEP,
        "ephemeralContainers": Verdict.LATER,
        "hostAliases": Verdict.KEEP,
        "hostIPC": Verdict.KEEP,
        "hostNetwork": Verdict.KEEP,
        "hostPID": Verdict.KEEP,
        "hostUsers": Verdict.KEEP,
        "hostname": Verdict.KEEP,
        "hostnameOverride": Verdict.KEEP,
        "imagePullSecrets": Verdict.KEEP,
        "initContainers": Verdict.MAP,
        "nodeName": Verdict.DROP,
        "nodeSelector": Verdict.MAP,
        "os": Verdict.KEEP,
        "overhead": Verdict.DROP,
        "preemptionPolicy": Verdict.DROP,
        "priority": Verdict.DROP,
        "priorityClassName": Verdict.MAP,
        "readinessGates": Verdict.DROP,
        "resourceClaims": Verdict.KEEP,
        "resources": Verdict.KEEP,
        "restartPolicy": Verdict.KEEP,
        "runtimeClassName": Verdict.MAP,
        "schedulerName": Verdict.MAP,
        "schedulingGates": Verdict.DROP,
        "schedulingGroup": Verdict.DROP,
        "securityContext": Verdict.KEEP,
        "serviceAccount": Verdict.MAP,
        "serviceAccountName": Verdict.MAP,
        "setHostnameAsFQDN": Verdict.KEEP,
        "shareProcessNamespace": Verdict.KEEP,
        "subdomain": Verdict.KEEP,
        "terminationGracePeriodSeconds": Verdict.KEEP,
        "tolerations": Verdict.MAP,
        "topologySpreadConstraints": Verdict.MAP,
        "volumes": Verdict.MAP,
        "workloadRef": Verdict.DROP,
    }
)
"""PodSpec. Admission below computes priority, preemptionPolicy and overhead, and refuses values that differ."""

STATUS: Mapping[str, Verdict] = MappingProxyType(
    {
        "allocatedResources": Verdict.KEEP,
        "conditions": Verdict.MAP,
        "containerStatuses": Verdict.MAP,
        "ephemeralContainerStatuses": Verdict.MAP,
        "extendedResourceClaimStatus": Verdict.DROP,
        "hostIP": Verdict.KEEP,
        "hostIPs": Verdict.KEEP,
        "initContainerStatuses": Verdict.MAP,
        "message": Verdict.KEEP,
        "nodeAllocatableResourceClaimStatuses": Verdict.DROP,
        "nominatedNodeName": Verdict.DROP,
        "observedGeneration": Verdict.MAP,
        "phase": Verdict.MAP,
        "podIP": Verdict.MAP,
        "podIPs": Verdict.MAP,
        "qosClass": Verdict.DROP,
        "reason": Verdict.KEEP,
        "resize": Verdict.DROP,
        "resourceClaimStatuses": Verdict.DROP,
        "resources": Verdict.KEEP,
        "startTime": Verdict.KEEP,
    }
)
"""PodStatus. qosClass is immutable above and differs when a LimitRange below adds limits; claims are the lower's."""


def with_verdict(table: Mapping[str, Verdict], *verdicts: Verdict) -> frozenset[str]:
    """Give the fields of a table that have one of the verdicts."""
    return frozenset(field for field, verdict in table.items() if verdict in verdicts)
