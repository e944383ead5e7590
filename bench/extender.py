"""How long the scheduler extender thinks: filter and prioritize over ten lowers of 500 nodes, 90 % full.

    .venv/bin/python -m bench.extender [--lowers 10] [--nodes 500] [--pods 500]

In memory: from the question's bytes to the answer's, with each pod made as it would be below; no network, no TLS.
Measured are a burst of equal pods that fit, one that fits nowhere, its siblings, and pods of a new kind each time that
fit nowhere. Each pod of the burst then has to have a node of its own.
"""

import argparse
import gc
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from bench.makespan import percentile
from bench.reporting import RESULTS, keep, verdict
from tensile.kubelet.place import Placement
from tensile.kubelet.projection import lower_pod
from tensile.names import owner_of
from tensile.policy.extender import Extender, Site
from tensile.policy.ground import Ground
from tensile.policy.placing.reading import node_of, pod_of
from tensile.policy.seeking import Seeker

NAME = "extender"
BARS = {"fits": 5.0, "nowhere_first": 30.0, "nowhere_siblings": 2.0, "nowhere_new_kinds": 30.0}
"""Milliseconds: the 99th percentile where there are many, else the one."""
_CPU, _FULL = 16, 14

Manifest = dict[str, Any]


def pod(name: str, cpu: str, **spec: Any) -> Manifest:
    """Make a pod that requests cpu, as an upper apiserver would give it."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
    meta = {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web", "tier": "front"}}
    tolerations = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]
    return {"metadata": meta, "spec": {"containers": [container], "tolerations": tolerations, **spec}}


def site(name: str, nodes: int) -> Site:
    """Make a lower whose nodes have room for two small pods each."""
    ground = Ground()
    for number in range(nodes):
        room = {"cpu": str(_CPU), "memory": "64Gi", "pods": "110"}
        labels = {"kubernetes.io/hostname": f"n{number}"}
        ground.put_node(
            node_of({"metadata": {"name": f"n{number}", "labels": labels}, "status": {"allocatable": room}})
        )
        for each in range(_FULL):
            there = pod(f"r{number}-{each}", "1", nodeName=f"n{number}")
            ground.put_pod(pod_of(there, settled=True))
    place = Placement(owner_of("upper", "demo"), name, "default", "uid", virtual_nodes=frozenset({name}))
    return Site(partial(lower_pod, place=place), ground, Seeker(ground), lambda: True)


def asked(extender: Extender, wanted: Manifest, names: list[str]) -> tuple[float, list[str]]:
    """Ask about one pod; gives the milliseconds, and the nodes that are left."""
    question = orjson.dumps({"Pod": wanted, "Nodes": None, "NodeNames": names})
    begin = time.perf_counter()
    answer = extender.filter(orjson.loads(question), 0.0)
    orjson.dumps(answer)
    if len(answer["NodeNames"]) > 1:
        left = orjson.dumps({"Pod": wanted, "Nodes": None, "NodeNames": answer["NodeNames"]})
        orjson.dumps(extender.prioritize(orjson.loads(left)))
    return (time.perf_counter() - begin) * 1000, answer["NodeNames"]


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Go through the kinds of questions; gives milliseconds and what is broken."""
    names = [f"lower-{number}" for number in range(given.lowers)]
    extender = Extender({name: site(name, given.nodes) for name in names})
    gc.collect()
    gc.freeze()
    burst, unplaced = [], 0
    for number in range(given.pods):
        took, left = asked(extender, pod(f"p{number}", "1"), names)
        burst.append(took)
        unplaced += not left
        for name in left[1:]:
            extender.sites[name].ground.break_promise(("default", f"p{number}"))
    nowhere = [asked(extender, pod(f"big{number}", "3"), names)[0] for number in range(given.pods)]
    kinds = [
        asked(extender, pod(f"kind{number}", "3", nodeSelector={"kind": str(number)}), names)[0] for number in range(50)
    ]
    found = {
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
    """Read the arguments, measure, keep the result; gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lowers", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=500, help="in each")
    parser.add_argument("--pods", type=int, default=500, help="in the burst")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    result = measured(given)
    print("  ".join(f"{name} {value} ms" for name, value in result["ms"].items()))
    path = keep(
        given.results, NAME, "none", {"lowers": given.lowers, "nodes": given.nodes, "pods": given.pods, **result}
    )
    return verdict(NAME, result["broken"], path)


if __name__ == "__main__":
    sys.exit(main())
