"""The command line of each component of a cluster, and the configuration of a scheduler with an extender.

They are plain data, so that tests can read them. Features of production are enabled (NodeRestriction, RBAC, the Node
authorizer, a service account per controller). The client limits of controller-manager and scheduler are raised;
otherwise measurements would measure these limits.

A scheduler gets a configuration only if the sandbox was requested with an extender. It calls the extender for every
pod, and each call costs a connection even if no server listens.
"""

import sys
from collections.abc import Sequence

import yaml

from tensile.sandbox.credentials import ADDONS, ENDPOINT, FRONT_PROXY_CLIENT, KUBELET_CLIENT
from tensile.sandbox.state import LOOPBACK, Binaries, Layout, Options

FILE = "scheduler.yaml"
QPS, BURST = 5000, 10000
WEIGHT = 5
FAST_CLIENT = (f"--kube-api-qps={QPS}", f"--kube-api-burst={BURST}")
FAST_DETECTION = (
    "--node-monitor-grace-period=12s",
    "--node-monitor-period=1s",
    "--node-eviction-rate=10",
    "--secondary-node-eviction-rate=10",
    "--large-cluster-size-threshold=0",
)
FAST_EVICTION = ("--default-not-ready-toleration-seconds=5", "--default-unreachable-toleration-seconds=5")
QUICK_AUTOSCALING = (
    "--horizontal-pod-autoscaler-sync-period=5s",
    "--horizontal-pod-autoscaler-downscale-stabilization=30s",
)
"""Instead of 15 seconds and 5 minutes: a person watches."""
LEASE_SECONDS = 40

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""


def commands(layout: Layout, binaries: Binaries, options: Options, stages: Sequence[str]) -> dict[str, list[str]]:
    """Return the command lines of the cluster's components by name, in the order in which they start.

    A real node is not a component.
    """
    whole = {
        "etcd": etcd(layout, binaries),
        "kube-apiserver": apiserver(layout, binaries, options),
        "kube-controller-manager": controller_manager(layout, binaries, options),
        "kube-scheduler": scheduler(layout, binaries, options),
    }
    if options.addons and layout.place == 0:
        whole[ADDONS] = [sys.executable, "-m", "tensile.sandbox.addons", layout.root]
    if layout.network or (layout.place == 0 and layout.nodes == 0):
        return whole
    return {
        **whole,
        "kwok": kwok(layout, binaries, stages),
        "endpoint": endpoint(layout, binaries),
    }


def etcd(layout: Layout, binaries: Binaries) -> list[str]:
    """Return the command line of etcd.

    It does not sync to disk, since a sandbox need not survive a crash of the machine.
    """
    client, peer = (f"http://{LOOPBACK}:{port}" for port in (layout.ports.etcd, layout.ports.peer))
    return [
        binaries.etcd,
        f"--name={layout.name}",
        f"--data-dir={layout.directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={layout.name}={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(layout: Layout, binaries: Binaries, options: Options) -> list[str]:
    """Return the command line of kube-apiserver."""
    verify = [f"--kubelet-certificate-authority={layout.pki / 'ca.crt'}"]
    return [
        binaries.apiserver,
        *_apiserver_network(layout),
        *_apiserver_trust(layout),
        *_front_proxy(layout),
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-log-path={layout.audit_log}",
        f"--audit-policy-file={layout.directory / 'audit-policy.yaml'}",
        "--audit-log-maxsize=0",
        *(verify if options.verify_kubelet else ()),
        *(FAST_EVICTION if _compressed(layout, options) else ()),
    ]


def controller_manager(layout: Layout, binaries: Binaries, options: Options) -> list[str]:
    """Return the command line of kube-controller-manager; all controllers run."""
    return [
        binaries.controller_manager,
        *_controller(layout, "kube-controller-manager", layout.ports.controller_manager),
        "--use-service-account-credentials=true",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--service-account-private-key-file={layout.pki / 'accounts.key'}",
        f"--cluster-signing-cert-file={layout.pki / 'ca.crt'}",
        f"--cluster-signing-key-file={layout.pki / 'ca.key'}",
        f"--service-cluster-ip-range={layout.service_range}",
        *(FAST_DETECTION if _compressed(layout, options) else ()),
        *(QUICK_AUTOSCALING if options.addons else ()),
    ]


def scheduler(layout: Layout, binaries: Binaries, options: Options) -> list[str]:
    """Return the command line of kube-scheduler; the upper one may have a configuration with the extender."""
    config = [f"--config={layout.directory / FILE}"] if options.extender and layout.place == 0 else []
    return [binaries.scheduler, *_controller(layout, "kube-scheduler", layout.ports.scheduler), *config]


def kwok(layout: Layout, binaries: Binaries, stages: Sequence[str]) -> list[str]:
    """Return the command line of kwok; its own kubelet server stays off, since `endpoint` serves instead."""
    return [
        binaries.kwok,
        f"--kubeconfig={layout.pki / 'kwok.kubeconfig'}",
        *(f"--config={stage}" for stage in stages),
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--cidr={layout.pod_range}",
        f"--node-ip={LOOPBACK}",
        f"--node-lease-duration-seconds={LEASE_SECONDS}",
    ]


def endpoint(layout: Layout, binaries: Binaries) -> list[str]:
    """Return the command line of the kubelet API for this cluster's nodes."""
    return [
        binaries.endpoint,
        f"--listen={LOOPBACK}:{layout.ports.endpoint}",
        *_serving(layout, "kubelet", key_flag="--tls-key-file"),
        f"--client-ca-file={layout.pki / 'ca.crt'}",
        f"--client-name={KUBELET_CLIENT}",
        f"--apiserver={layout.server}",
        f"--apiserver-certificate-authority={layout.pki / 'ca.crt'}",
        f"--apiserver-client-certificate={layout.pki / ENDPOINT}.crt",
        f"--apiserver-client-key={layout.pki / ENDPOINT}.key",
        f"--logs={layout.logs}",
        f"--work={layout.work}",
    ]


def configuration(layout: Layout, port: int) -> str:
    """Return a scheduler configuration for an extender on a loopback port that is served with this cluster's CA.

    With a configuration the scheduler reads its kubeconfig and client limits from it and ignores its flags.
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


def _compressed(layout: Layout, options: Options) -> bool:
    """Report whether this cluster evicts pods within seconds."""
    return options.compressed_eviction and layout.place == 0


def _serving(layout: Layout, name: str, key_flag: str = "--tls-private-key-file") -> list[str]:
    """Return the flags of a serving certificate, whose names differ between programs."""
    stem = layout.pki / name
    return [f"--tls-cert-file={stem}.crt", f"{key_flag}={stem}.key"]


def _controller(layout: Layout, component: str, port: int) -> list[str]:
    """Return the flags that controller-manager and scheduler have in common."""
    credential = layout.pki / f"{component}.kubeconfig"
    return [
        f"--kubeconfig={credential}",
        f"--authentication-kubeconfig={credential}",
        f"--authorization-kubeconfig={credential}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        *_serving(layout, "kubelet"),
        "--leader-elect=false",
        *FAST_CLIENT,
    ]


def _apiserver_network(layout: Layout) -> list[str]:
    """Return the network flags of the apiserver.

    It writes no endpoints for Service `kubernetes`, since Kubernetes does not accept a loopback address there.
    """
    return [
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={layout.ports.apiserver}",
        f"--etcd-servers=http://{LOOPBACK}:{layout.ports.etcd}",
        f"--service-cluster-ip-range={layout.service_range}",
        "--endpoint-reconciler-type=none",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def _apiserver_trust(layout: Layout) -> list[str]:
    """Return the flags of the apiserver's certificates, and of the keys for service account tokens."""
    client = layout.pki / "kubelet-client"
    return [
        *_serving(layout, "apiserver"),
        f"--client-ca-file={layout.pki / 'ca.crt'}",
        f"--kubelet-client-certificate={client}.crt",
        f"--kubelet-client-key={client}.key",
        f"--service-account-key-file={layout.pki / 'accounts.pub'}",
        f"--service-account-signing-key-file={layout.pki / 'accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
    ]


def _front_proxy(layout: Layout) -> list[str]:
    """Return the flags that permit the front proxy to act for other users, with the names of its headers."""
    stem = layout.pki / "front-proxy"
    return [
        f"--proxy-client-cert-file={stem}.crt",
        f"--proxy-client-key-file={stem}.key",
        f"--requestheader-client-ca-file={layout.pki / 'front-proxy-ca.crt'}",
        f"--requestheader-allowed-names={FRONT_PROXY_CLIENT}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]
