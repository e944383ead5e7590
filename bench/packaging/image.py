"""Runs the container image as a hardened cluster does: as a non-root user, unprivileged, with a read-only root.

    .venv/bin/python -m bench.packaging.image [--archive FILE]

The image is built with docker, podman or buildah, whichever works on this machine, or read from an archive that one of
them has saved (`docker save`). On the sandbox's real node it prints its version, validates a topology, runs doctor, and
runs the engine on a ConfigMap until its pod is deleted. If there is no builder, or if the machine cannot run a real
node, the program prints the reason and tries nothing. Writes faults-image.json; exits with 1 if a check failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.kit.child_processes import ROOT
from bench.kit.node_images import import_images
from bench.kit.reporting import RESULTS, keep, verdict
from tensile import __version__
from tensile.sandbox import real_node
from tensile.sandbox.binaries import CONTROL_PLANE, cache_directory
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

BUILDERS = ("docker", "podman", "buildah")
IMAGE = f"tensile-kube:{__version__}"
LOWER = "lower-a"
SPACE = "tensile"
LIMIT = 90.0
TELEMETRY = 9095
TOPOLOGY = f"""\
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: image
lowers: []
telemetry: {{bind: 0.0.0.0, port: {TELEMETRY}}}
"""
UPPER = ["--configmap", f"{SPACE}/topology", "--kubeconfig", "/upper/kubeconfig"]
CONFINED = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def works(builder: str) -> bool:
    """Report whether a builder is installed and answers."""
    try:
        return subprocess.run([builder, "info"], capture_output=True, check=False, timeout=30).returncode == 0
    except OSError:
        return False


def saved(builder: str, archive: Path) -> Path:
    """Build the image, save it, and return the archive."""
    subprocess.run(["make", "image", f"BUILDER={builder}"], cwd=ROOT, check=True)
    save = (
        ["push", IMAGE, f"docker-archive:{archive}:{IMAGE}"] if builder == "buildah" else ["save", "-o", archive, IMAGE]
    )
    subprocess.run([builder, *map(str, save)], check=True)
    return archive


def described(archive: Path) -> dict[str, Any]:
    """Return an image's name, its configuration, and the sizes of its unpacked layers in MiB."""
    with tarfile.open(archive) as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json") or sys.exit(f"{archive}: no image"))
        config = json.load(tar.extractfile(manifest["Config"]) or sys.exit(f"{archive}: no configuration"))
        sizes = [tar.getmember(layer).size for layer in manifest["Layers"]]
    return {
        "name": manifest["RepoTags"][0],
        "layers_mib": [round(size / 2**20, 1) for size in sizes],
        **config["config"],
    }


class Node:
    """The real node of a sandbox, with a namespace for the engine."""

    def __init__(self, sandbox: Sandbox, image: str) -> None:
        self._sandbox = sandbox
        self._image = image

    def prepare(self) -> None:
        """Create the objects that the pods mount: the topology, and credentials for the cluster."""
        self.kubectl("create", "namespace", SPACE, space="default")
        self.kubectl("label", "namespace", SPACE, "pod-security.kubernetes.io/warn=restricted", space="default")
        self.kubectl("create", "configmap", "topology", f"--from-literal=topology.yaml={TOPOLOGY}")
        self.kubectl("create", "secret", "generic", "upper", f"--from-literal=kubeconfig={self._way()}")
        until(lambda: self.kubectl("get", "serviceaccount", "default"), lambda: "no account of the namespace")

    def _way(self) -> str:
        """Return the administrator's kubeconfig, with the apiserver's address in the node's network."""
        cluster = self._sandbox.clusters[LOWER]
        of_the_node = yaml.safe_load((cluster.audit_log.parent / "pki" / "node.kubeconfig").read_text())
        server: str = of_the_node["clusters"][0]["cluster"]["server"]
        return cluster.kubeconfig.read_text().replace(cluster.server, server)

    def kubectl(self, *arguments: str, space: str = SPACE, stdin: str = "") -> str:
        """Run kubectl, and return its output, "" if it fails."""
        done = self._sandbox.kubectl("-n", space, *arguments, cluster=LOWER, stdin=stdin)
        return done.stdout if done.returncode == 0 else ""

    def start(self, name: str, *arguments: str) -> None:
        """Start a pod confined as Pod Security `restricted` demands, but in the host network to reach the apiserver."""
        volumes = [
            {"name": "topology", "configMap": {"name": "topology"}},
            {"name": "upper", "secret": {"secretName": "upper"}},
        ]
        container = {
            "name": "tensile",
            "image": self._image,
            "imagePullPolicy": "Never",
            "args": list(arguments),
            "securityContext": CONFINED,
            "volumeMounts": [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes],
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": TELEMETRY}, "periodSeconds": 1},
        }
        spec = {"restartPolicy": "Never", "hostNetwork": True, "containers": [container], "volumes": volumes}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.kubectl("create", "-f", "-", stdin=json.dumps(pod))

    def status(self, name: str) -> dict[str, Any]:
        """Return a pod's status."""
        return dict(json.loads(self.kubectl("get", "pod", name, "-o", "json") or '{"status": {}}')["status"])

    def found(self, name: str) -> str:
        """Return a pod's status and log, for the message of a timeout."""
        return f"pod {name}: {self.status(name)}: {self.kubectl('logs', name)}"

    def ended(self, name: str, *arguments: str) -> tuple[int, str]:
        """Run a pod until it ends, and return its exit code and its log."""
        self.start(name, *arguments)
        until(lambda: self.status(name).get("phase") in ("Succeeded", "Failed"), lambda: self.found(name))
        (container,) = self.status(name)["containerStatuses"]
        return container["state"]["terminated"]["exitCode"], self.kubectl("logs", name)

    def served(self) -> tuple[float, str]:
        """Run the engine until it is ready, and stop it; return the seconds until it was ready, and its log."""
        begin = time.monotonic()
        self.start("run", "run", *UPPER)
        until(lambda: _is_ready(self.status("run")), lambda: self.found("run"))
        taken = time.monotonic() - begin
        command = self._sandbox.kubectl_command("-n", SPACE, "logs", "--follow", "run", cluster=LOWER)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
            self.kubectl("delete", "pod", "run", "--wait=false")
            output, _ = following.communicate(timeout=LIMIT)
        return taken, output


def _is_ready(status: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))


def until(holds: Callable[[], object], found: Callable[[], str]) -> None:
    """Wait until a condition holds; raises TimeoutError, with the state that was found instead."""
    end = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {LIMIT:g} s: {found()}")
        time.sleep(0.2)


def tried(archive: Path, scratch: Path) -> dict[str, Any]:
    """Run the image in all ways, and return the measurements and the failures."""
    image = described(archive)
    broken = [] if image["User"] == "65532:65532" and image["Entrypoint"] == ["tensile"] else [f"it says {image}"]
    with Sandbox.start(scratch / "sandbox", Options(lowers=1, real_node=True)) as sandbox:
        node = Node(sandbox, image["name"])
        import_images(sandbox, archive)
        node.prepare()
        runs = {
            "version": (("--version",), 0, f"tensile {__version__}"),
            "validate": (("validate", "-f", "/topology/topology.yaml"), 0, ""),
            "doctor": (("doctor", *UPPER), 0, "0 failed"),
        }
        output: dict[str, str] = {}
        for name, (arguments, wanted, failure) in runs.items():
            code, output[name] = node.ended(name, *arguments)
            broken += [] if (code, failure in output[name]) == (wanted, True) else [f"{name}: {code}: {output[name]}"]
        seconds, output["run"] = node.served()
        broken += [
            f"run: {word} is not logged: {output['run']}"
            for word in ("started", "stopped")
            if word not in output["run"]
        ]
    broken += [f"{name}: a traceback" for name, failure in output.items() if "Traceback" in failure]
    measured = {"layers_mib": image["layers_mib"], "ready_after_s": round(seconds, 1)}
    return {**measured, "labels": image.get("Labels"), "said": output, "broken": broken}


def main() -> int:
    """Find or build the image, try it, keep the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--archive", type=Path, help="a saved image to test; default: build one")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which to write the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        builder = next(filter(works, BUILDERS), "")
        why = real_node.obstacle((scratch, cache_directory(os.environ)), os.environ)
        why = why or ("" if args.archive or builder else f"none of {', '.join(BUILDERS)} works here")
        if why:
            print(f"image: nothing was tried: {why}")
            return 0
        result = tried(args.archive or saved(builder, scratch / "image.tar"), scratch)
    return verdict("image", result["broken"], keep(args.results, "faults-image", CONTROL_PLANE.version, result))


if __name__ == "__main__":
    sys.exit(main())
