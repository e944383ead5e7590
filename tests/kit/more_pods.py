"""Pods beyond those recorded from the first tensile-kube's webhook: the input, and the expected mutation.

Each case has the expected rest of the spec, and the expected annotation to the byte. Tolerations are given if they
differ from the two unlimited ones.
"""

from typing import Any, NamedTuple

from admissionkit import (
    DEFAULTS,
    NOT_READY,
    UNLIMITED,
    UNREACHABLE,
    VK_A,
    VK_B,
    required,
    requirement,
    term,
)

Manifest = dict[str, Any]
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
DISK, GPU, ZONE = requirement("disk", "ssd"), requirement("gpu", operator="Exists"), requirement("zone", "a", "b")
CLUSTER, OTHER = requirement("clusterID", "x"), requirement("clusterID", "y")
LIKED = {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": term(ZONE)}]}}
SPREAD = {"podAntiAffinity": {PREFERRED: [{"weight": 5, "podAffinityTerm": {"topologyKey": "zone"}}]}}
_REQUIRED = '"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":['
_DISK = '{"key":"disk","operator":"In","values":["ssd"]}'
_GPU = '{"key":"gpu","operator":"Exists"}'
_ZONE = '{"key":"zone","operator":"In","values":["a","b"]}'
_CLUSTER = '{"key":"clusterID","operator":"In","values":["x"]}'
_OTHER = '{"key":"clusterID","operator":"In","values":["y"]}'


class PodCase(NamedTuple):
    """A pod's spec, the nodeSelector and affinity that stay in it, the annotation, and special tolerations."""

    name: str
    spec: Manifest
    stays: Manifest
    annotation: str
    tolerations: list[Manifest] = UNLIMITED


def _terms(*texts: str) -> str:
    """Return an annotation with these terms, each given as the requirements of one."""
    inside = ",".join(f'{{"matchExpressions":[{text}]}}' for text in texts)
    return f"{{{_REQUIRED}{inside}]}}}}}}}}"


EMPTIED = {"affinity": {"nodeAffinity": {}}}
CASES = (
    PodCase("selector-mixed", {"nodeSelector": {"clusterID": "x", "disk": "ssd"}}, {"nodeSelector": {"clusterID": "x"}},
         '{"nodeSelector":{"disk":"ssd"}}'),
    PodCase("selector-sorted", {"nodeSelector": {"z": "1", "a": "2", "m": "3"}}, {},
         '{"nodeSelector":{"a":"2","m":"3","z":"1"}}'),
    PodCase("selector-empty", {"nodeSelector": {}}, {}, "{}"),
    PodCase("selector-of-a-lower-node", {"nodeSelector": {"kubernetes.io/hostname": "n1"}}, {},
         '{"nodeSelector":{"kubernetes.io/hostname":"n1"}}'),
    PodCase("selector-of-a-virtual-node", {"nodeSelector": {"kubernetes.io/hostname": VK_A}},
         {"nodeSelector": {"kubernetes.io/hostname": VK_A}}, "{}"),
    PodCase("selector-of-any-virtual-node", {"nodeSelector": {"type": "virtual-kubelet", "gpu": "a100"}},
         {"nodeSelector": {"type": "virtual-kubelet"}}, '{"nodeSelector":{"gpu":"a100"}}'),
    PodCase("selector-of-the-role", {"nodeSelector": {"kubernetes.io/role": "agent"}},
         {"nodeSelector": {"kubernetes.io/role": "agent"}}, "{}"),
    PodCase("selector-and-affinity", {"nodeSelector": {"a": "b"}, "affinity": required(term(DISK))}, EMPTIED,
         f'{{"nodeSelector":{{"a":"b"}},{_terms(_DISK)[1:]}'),
    PodCase("selector-and-tolerations", {"nodeSelector": {"a": "b"}, "tolerations": DEFAULTS}, {},
         '{"nodeSelector":{"a":"b"},"tolerations":['
         f'{{"key":"{NOT_READY}","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}},'
         f'{{"key":"{UNREACHABLE}","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}}]}}'),
    PodCase("terms-all-lower", {"affinity": required(term(DISK), term(GPU))}, EMPTIED, _terms(_DISK, _GPU)),
    PodCase("terms-all-upper", {"affinity": required(term(CLUSTER), term(OTHER))},
         {"affinity": required(term(CLUSTER), term(OTHER))}, "{}"),
    PodCase("terms-of-one-cluster", {"affinity": required(term(CLUSTER, DISK), term(CLUSTER, GPU))},
         {"affinity": required(term(CLUSTER), term(CLUSTER))}, _terms(_DISK, _GPU)),
    PodCase("terms-of-one-kind-of-node", {"affinity": required(term(CLUSTER, DISK), term(OTHER, DISK))},
         {"affinity": required(term(CLUSTER), term(OTHER))}, _terms(_DISK, _DISK)),
    PodCase("terms-of-pairs", {"affinity": required(term(CLUSTER, DISK), term(OTHER, GPU))},
         {"affinity": required(term(CLUSTER), term(OTHER))},
         _terms(f"{_CLUSTER},{_DISK}", f"{_OTHER},{_GPU}")),
    PodCase("terms-one-without-lower-keys", {"affinity": required(term(CLUSTER), term(CLUSTER, DISK))},
         {"affinity": required(term(CLUSTER), term(CLUSTER))}, "{}"),
    PodCase("terms-one-without-upper-keys", {"affinity": required(term(DISK), term(CLUSTER, DISK))}, EMPTIED,
         _terms(_DISK, _DISK)),
    PodCase("terms-one-empty", {"affinity": required({}, term(CLUSTER, DISK))},
         {"affinity": required(term(CLUSTER))}, _terms(_DISK)),
    PodCase("term-empty", {"affinity": required({})}, {"affinity": required({})}, "{}"),
    PodCase("fields-of-a-virtual-node", {"affinity": required(term(fields=(requirement("metadata.name", VK_A),)))},
         {"affinity": required(term(fields=(requirement("metadata.name", VK_A),)))}, "{}"),
    PodCase("not-on-virtual-nodes",
         {"affinity": required(term(requirement("kubernetes.io/hostname", VK_A, VK_B, operator="NotIn")))},
         {"affinity": required(term(requirement("kubernetes.io/hostname", VK_A, VK_B, operator="NotIn")))}, "{}"),
    PodCase("not-on-a-virtual-or-lower-node",
         {"affinity": required(term(requirement("kubernetes.io/hostname", VK_A, "n1", operator="NotIn")))},
         {"affinity": required(term(requirement("kubernetes.io/hostname", VK_A, operator="NotIn")))},
         _terms('{"key":"kubernetes.io/hostname","operator":"NotIn","values":["n1"]}')),
    PodCase("virtual-or-lower-node",
         {"affinity": required(term(requirement("kubernetes.io/hostname", VK_A, "n1")))},
         {"affinity": required(term(requirement("kubernetes.io/hostname", VK_A, "n1")))}, "{}"),
    PodCase("number", {"affinity": required(term(requirement("cores", "4", operator="Gt")))}, EMPTIED,
         _terms('{"key":"cores","operator":"Gt","values":["4"]}')),
    PodCase("fields-in-another-order",
         {"affinity": required({"matchExpressions": [{"values": ["ssd"], "operator": "In", "key": "disk"}]})}, EMPTIED,
         _terms(_DISK)),
    PodCase("empty-list-of-values", {"affinity": required(term({"key": "gpu", "operator": "Exists", "values": []}))},
         EMPTIED, _terms(_GPU)),
    PodCase("newer-field", {"affinity": required(term({**DISK, "weightOfTomorrow": 1}))}, EMPTIED,
         _terms('{"key":"disk","operator":"In","values":["ssd"],"weightOfTomorrow":1}')),
    PodCase("preferred-beside-required", {"affinity": {"nodeAffinity": {**required(term(DISK))["nodeAffinity"],
         **LIKED["nodeAffinity"]}}}, {"affinity": LIKED}, _terms(_DISK)),
    PodCase("pods-beside-required", {"affinity": {**SPREAD, **required(term(ZONE))}},
         {"affinity": {**SPREAD, "nodeAffinity": {}}}, _terms(_ZONE)),
    PodCase("toleration-of-an-hour", {"tolerations": [{**UNLIMITED[0], "tolerationSeconds": 3600}]}, {},
         f'{{"tolerations":[{{"key":"{NOT_READY}","operator":"Exists","effect":"NoExecute","tolerationSeconds":3600}}]}}'),
    PodCase("toleration-of-0-seconds", {"tolerations": [{**UNLIMITED[1], "tolerationSeconds": 0}]}, {},
         f'{{"tolerations":[{{"key":"{UNREACHABLE}","operator":"Exists","effect":"NoExecute","tolerationSeconds":0}}]}}',
         [UNLIMITED[1], UNLIMITED[0]]),
    PodCase("toleration-of-no-schedule", {"tolerations": [{**UNLIMITED[0], "effect": "NoSchedule"}]}, {},
         f'{{"tolerations":[{{"key":"{NOT_READY}","operator":"Exists","effect":"NoSchedule"}}]}}',
         [{**UNLIMITED[0], "effect": "NoSchedule"}, *UNLIMITED]),
    PodCase("toleration-of-all-keys",
         {"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]}, {},
         '{"tolerations":[{"operator":"Exists","effect":"NoExecute","tolerationSeconds":30}]}',
         [*UNLIMITED, {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]),
    PodCase("toleration-with-html", {"tolerations": [{"key": "k", "value": "<&>"}]}, {},
         '{"tolerations":[{"key":"k","value":"\\u003c\\u0026\\u003e"}]}',
         [{"key": "k", "value": "<&>"}, *UNLIMITED]),
)  # fmt: skip
