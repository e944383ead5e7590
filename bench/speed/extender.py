"""The time of the scheduler extender for filter and prioritize with ten lower clusters of 500 nodes that are 90 % full.

    .venv/bin/python -m bench.speed.extender [--lowers 10] [--nodes 500] [--pods 500]

It is measured in memory, from the bytes of the request to the bytes of the response, with each pod translated to its
lower pod; without network and TLS. The measurements are: a burst of equal pods that fit; one pod that fits on no node,
its siblings, and pods of a new kind each time that fit on no node; pods of higher priority that fit on no node either,
of a kind with possible victims and of new kinds without; and the choice of victims. Each pod of the burst needs a node
of its own.
"""

import argparse
import gc
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from bench.kit.reporting import RESULTS, keep, verdict
from bench.speed.makespan import percentile
from tensile.kubelet.pods.lower_context import LowerContext
from tensile.kubelet.pods.projection import to_lower_pod
from tensile.names import owner_of
from tensile.policy.extender.extender import LowerCandidate, SchedulerExtender
from tensile.policy.extender.node_cache import NodeCache, NodeFinder, PodName
from tensile.policy.extender.preemption_controller import PreemptResponder
from tensile.policy.extender.victim_selection import Residents, VirtualNodeView
from tensile.policy.placement.snapshot import node_of, pod_of

NAME = "extender"
BARS = {"fits": 5.0, "nowhere_first": 30.0, "nowhere_siblings": 2.0, "nowhere_new_kinds": 30.0}
BARS |= {"preempting_siblings": 5.0, "preempting_in_vain": 250.0, "preempt_verb": 250.0}
"""Milliseconds: the 99th percentile where there are many, else the one."""
_CPU, _FULL = 16, 14

Manifest = dict[str, Any]


def pod(name: str, cpu: str, **spec: Any) -> Manifest:
    """Return a pod that requests cpu, in the form of an upper apiserver."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    meta = {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web", "tier": "front"}}
    tolerations = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]
    return {"metadata": meta, "spec": {"containers": [container], "tolerations": tolerations, **spec}}


def site(name: str, nodes: int) -> LowerCandidate:
    """Return a lower cluster whose nodes have room for two small pods each."""
    ground, residents = NodeCache(), Residents()
    for number in range(nodes):
        room = {"cpu": str(_CPU), "memory": "64Gi", "pods": "110"}
        labels = {"kubernetes.io/hostname": f"n{number}"}
        ground.put_node(
            node_of({"metadata": {"name": f"n{number}", "labels": labels}, "status": {"allocatable": room}})
        )
        for each in range(_FULL):
            there = pod(f"r{number}-{each}", "1", nodeName=f"n{number}")
            ground.put_pod(pod_of(there, settled=True))
            there["spec"]["priority"] = 2000 if each else 0
            residents.put(("default", f"r{number}-{each}"), there)
    room = {"cpu": str(_CPU * nodes), "memory": f"{64 * nodes}Gi", "pods": str(110 * nodes)}
    virtual = node_of({"metadata": {"name": name}, "status": {"allocatable": room}})

    def copy_of(known: PodName) -> str:
        """Return the UID of a lower pod; here it is the pod's name."""
        return known[1]

    place = LowerContext(owner_of("upper", "demo"), name, "default", "uid", virtual_nodes=frozenset({name}))
    return LowerCandidate(
        partial(to_lower_pod, context=place),
        ground,
        NodeFinder(ground),
        lambda: True,
        residents=residents,
        virtual_node=lambda: VirtualNodeView(
            virtual, residents.pods, residents.used, copy_of, lambda _: True, lambda _: None
        ),
    )


def call_extender(extender: SchedulerExtender, wanted: Manifest, names: list[str]) -> tuple[float, list[str]]:
    """Send the requests for one pod; return the milliseconds, and the remaining nodes."""
    question = orjson.dumps({"Pod": wanted, "Nodes": None, "NodeNames": names})
    begin = time.perf_counter()
    answer = extender.filter(orjson.loads(question), 0.0)
    orjson.dumps(answer)
    if len(answer["NodeNames"]) > 1:
        left = orjson.dumps({"Pod": wanted, "Nodes": None, "NodeNames": answer["NodeNames"]})
        orjson.dumps(extender.prioritize(orjson.loads(left)))
    return (time.perf_counter() - begin) * 1000, answer["NodeNames"]


def preempted(extender: SchedulerExtender, wanted: Manifest, names: list[str]) -> float:
    """Request the victims for one pod; return the milliseconds."""
    victims = {name: {"Pods": [{"UID": "r0-0"}], "NumPDBViolations": 0} for name in names}
    question = orjson.dumps({"Pod": wanted, "NodeNameToMetaVictims": victims})
    begin = time.perf_counter()
    *_, answer = PreemptResponder(extender).answer(orjson.loads(question), (), 0.0)
    orjson.dumps(answer)
    assert answer["NodeNameToMetaVictims"], "there are victims"
    return (time.perf_counter() - begin) * 1000


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all kinds of requests; return milliseconds and which bars are exceeded."""
    names = [f"lower-{number}" for number in range(args.lowers)]
    extender = SchedulerExtender({name: site(name, args.nodes) for name in names})
    gc.collect()
    gc.freeze()
    burst, unplaced = [], 0
    for number in range(args.pods):
        took, left = call_extender(extender, pod(f"p{number}", "1"), names)
        burst.append(took)
        unplaced += not left
        for name in left[1:]:
            extender.sites[name].cache.forget(("default", f"p{number}"))
    nowhere = [call_extender(extender, pod(f"big{number}", "3"), names)[0] for number in range(args.pods)]
    kinds = [
        call_extender(extender, pod(f"kind{number}", "3", nodeSelector={"kind": str(number)}), names)[0]
        for number in range(50)
    ]
    high = {"priority": 1000}
    curable = [call_extender(extender, pod(f"high{number}", "3", **high), names)[0] for number in range(args.pods)]
    vain = [pod(f"vain{number}", "4", **high) for number in range(50)]
    for number, each in enumerate(vain):
        each["metadata"]["labels"]["kind"] = str(number)
    in_vain = [call_extender(extender, each, names)[0] for each in vain]
    verb = [preempted(extender, pod(f"verb{number}", "3", **high), names) for number in range(20)]
    found = {
        "preempting_siblings": percentile(sorted(curable[1:]), 0.99),
        "preempting_in_vain": percentile(sorted(in_vain), 0.99),
        "preempt_verb": percentile(sorted(verb), 0.99),
        "fits": percentile(sorted(burst), 0.99),
        "fits_p50": percentile(sorted(burst), 0.5),
        "nowhere_first": nowhere[0],
        "nowhere_siblings": percentile(sorted(nowhere[1:]), 0.99),
        "nowhere_new_kinds": percentile(sorted(kinds), 0.99),
    }
    broken = [f"{name}: {found[name]:.2f} ms, the bar is {bar:g}" for name, bar in BARS.items() if found[name] > bar]
    broken += [f"{unplaced} pods of the burst were sent nowhere"] if unplaced else []
    return {"ms": {name: round(value, 3) for name, value in found.items()}, "bars_ms": BARS, "broken": broken}


def main() -> int:
    """Parse the arguments, measure and store the result; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lowers", type=int, default=10, help="the number of lower clusters")
    parser.add_argument("--nodes", type=int, default=500, help="the number of nodes in each lower cluster")
    parser.add_argument("--pods", type=int, default=500, help="the number of pods in the burst")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    result = measured(args)
    print("  ".join(f"{name} {value} ms" for name, value in result["ms"].items()))
    path = keep(args.results, NAME, "none", {"lowers": args.lowers, "nodes": args.nodes, "pods": args.pods, **result})
    return verdict(NAME, result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
