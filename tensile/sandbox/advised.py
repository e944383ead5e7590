"""The configuration of an upper scheduler that asks the engine's extender before it binds a pod.

Only a sandbox that was asked for one has it: a scheduler that knows of an extender calls it for every pod, and one that
nobody serves costs a connection each time.
"""

import yaml

from tensile.sandbox.layout import LOOPBACK, Layout

FILE = "scheduler.yaml"
QPS, BURST = 5000, 10000
WEIGHT = 5


def configuration(layout: Layout, port: int) -> str:
    """Return the configuration, for an extender on a port of loopback that is served with this cluster's authority.

    With a configuration the scheduler takes its kubeconfig and its client limits from there and not from its flags.
    """
    extender = {
        "urlPrefix": f"https://{LOOPBACK}:{port}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": WEIGHT,
        "enableHTTPS": True,
        "tlsConfig": {
            "caFile": str(layout.pki / "ca.crt"),
            "certFile": str(layout.pki / "kube-scheduler.crt"),
            "keyFile": str(layout.pki / "kube-scheduler.key"),
        },
        "httpTimeout": "2s",
        "nodeCacheCapable": True,
        "ignorable": True,
    }
    whole = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(layout.pki / "kube-scheduler.kubeconfig"), "qps": QPS, "burst": BURST},
        "leaderElection": {"leaderElect": False},
        "extenders": [extender],
    }
    return yaml.safe_dump(whole, sort_keys=False)
