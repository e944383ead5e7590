"""The objects that the commands use: pods of every kind that matters to a kubelet, the same ones on either node."""

from typing import Any

import orjson

from tensile.sandbox.real_node import IMAGE

Manifest = dict[str, Any]
NAMESPACE = "shop"
PORTS = (7001, 7002)
SLEEP = "exec sleep 100000"
SERVE = (
    "for p in 7001 7002; do mkdir -p /srv/$p; echo page $p > /srv/$p/index.html; httpd -p $p -h /srv/$p; done; "
    "echo begun; sleep 0.3; echo oops >&2; sleep 0.3; seq 1 5; exec sleep 100000"
)
ASK = 'echo begun; read line; echo "got $line"; sleep 1; exit 3'
TYPED = 'while ! read -t 1 line; do echo ready; done; echo "got $line"; exit 4'
TOLERATIONS = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]
PROBED = {"periodSeconds": 1, "timeoutSeconds": 10}
"""The period and timeout of probes: on a busy machine no probe may fail for want of time."""
ONCE_SICK = "if test -e /scratch/again; then touch /tmp/well; else touch /scratch/again; fi; exec sleep 100000"
"""The probe fails only in the container's first run, so that the number of restarts does not depend on time."""
_ALWAYS = {"command": ["true"]}


def container(name: str, script: str, **more: Any) -> Manifest:
    """Return a container that runs a shell script."""
    return {"name": name, "image": IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script], **more}


def pod(name: str, *containers: Manifest, **spec: Any) -> Manifest:
    """Return a pod that may run on either node."""
    whole = {"containers": containers, "terminationGracePeriodSeconds": 1, "tolerations": TOLERATIONS, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": whole}


def web() -> Manifest:
    """Return the pod with several containers, probes, ports, environment variables and volumes."""
    main = container(
        "main",
        SERVE,
        ports=[{"containerPort": port} for port in PORTS],
        env=[
            {"name": "PLAIN", "value": "plain"},
            {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "colours", "key": "sky"}}},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        readinessProbe={"exec": _ALWAYS, **PROBED},
        resources={"requests": {"cpu": "100m", "memory": "32Mi"}},
        volumeMounts=[
            {"name": "scratch", "mountPath": "/scratch"},
            {"name": "colours", "mountPath": "/colours"},
            {"name": "secrets", "mountPath": "/secrets"},
        ],
    )
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "colours", "configMap": {"name": "colours"}},
        {"name": "secrets", "secret": {"secretName": "secrets"}},
    ]
    first = container("first", "echo prepared")
    return pod("web", main, container("side", f"echo beside; {SLEEP}"), initContainers=[first], volumes=volumes)


def fleet() -> Manifest:
    """Return a Deployment of one pod, so that a command that selects a pod has only one to choose."""
    template = pod("fleet", container("main", f"echo sails; {SLEEP}"))
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "fleet"}},
        "template": {"metadata": {"labels": {"app": "fleet"}}, "spec": template["spec"]},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "fleet"}, "spec": spec}


def job() -> Manifest:
    """Return a Job that completes immediately."""
    spec = pod("once", container("main", "echo done"), restartPolicy="Never")["spec"]
    metadata = {"name": "once"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": spec}}}


def sick() -> Manifest:
    """Return a pod whose container is restarted once, because its probe fails."""
    asks = {"command": ["sh", "-c", "test -e /tmp/well || { echo sick; false; }"]}
    probe = {"exec": asks, "initialDelaySeconds": 1, "failureThreshold": 1, **PROBED}
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    main = container("main", f"echo begun; {ONCE_SICK}", livenessProbe=probe, volumeMounts=mounts)
    return pod("sick", main, volumes=[{"name": "scratch", "emptyDir": {}}])


def half() -> Manifest:
    """Return a pod of which one container has ended; the other one later gets an image that is never pulled."""
    main = container("main", SLEEP, imagePullPolicy="Never")
    return pod("half", main, container("gone", "exit 0"), restartPolicy="Never")


def everything() -> str:
    """Return the manifest of all objects."""
    items = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "colours"}, "data": {"sky": "blue"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secrets"}, "stringData": {"key": "dark"}},
        web(),
        pod("asks", container("main", ASK, stdin=True)),
        pod("typed", container("main", TYPED, stdin=True, tty=True)),
        sick(),
        pod("pulls", container("main", SLEEP, image="nowhere:1", imagePullPolicy="Never")),
        pod("done", container("main", "echo done"), restartPolicy="Never"),
        pod("failed", container("main", "echo failed; exit 3"), restartPolicy="Never"),
        half(),
        fleet(),
        job(),
    ]
    return orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items}).decode()


def overrides() -> str:
    """Return the fields that let a pod of `kubectl run` run on either node."""
    return orjson.dumps({"spec": {"tolerations": TOLERATIONS, "terminationGracePeriodSeconds": 1}}).decode()
