"""The tour as data: its texts, commands and files, in order.

It is data so that the printed commands are exactly those that run, and a test can read all of it. Every command works
in a terminal as printed, in the demo's directory and with KUBECONFIG set to the kubeconfigs of all clusters, of which
the upper one's is the default. Every command that waits has a timeout. Texts fit into 80 columns.

The workload and the edited topology are written to the sandbox's directory under the names that the commands use.
"""

from typing import NamedTuple

WORKLOAD_FILE = "workload.yaml"
EDITED_FILE = "edited.yaml"
LOG_FILE = "engine.log"
CACHE_FOLDER = "kubectl-cache"
COLUMNS_FILE = "columns"
NAMES = (WORKLOAD_FILE, EDITED_FILE, COLUMNS_FILE, LOG_FILE, CACHE_FOLDER)
"""All files that the demo adds to the sandbox's directory."""
CHANGES = (2,)
"""The exit code of a plan with changes."""
_LOWER = "- name: lower-b\n"
_EDIT = "  maintenance: cordon\n  node:\n    labels: {zone: north}\n"


class Command(NamedTuple):
    """A command line, and its expected exit codes."""

    line: str
    codes: tuple[int, ...] = (0,)


class SideBySide(NamedTuple):
    """Commands whose outputs are shown next to each other: that of the first one left, those of the others right."""

    left: Command
    right: tuple[Command, ...]


class Scene(NamedTuple):
    """One step of the tour: its title, a text (lines of at most 80 characters), and the commands."""

    title: str
    text: str
    commands: tuple[Command | SideBySide, ...]

    @property
    def lines(self) -> tuple[Command, ...]:
        """All commands, in the order in which they are printed."""
        comparisons = (one if isinstance(one, SideBySide) else SideBySide(one, ()) for one in self.commands)
        return tuple(command for comparison in comparisons for command in (comparison.left, *comparison.right))


def _commands(text: str) -> tuple[Command, ...]:
    """Return the commands of a text, one per line; each must exit with 0."""
    return tuple(Command(line) for line in text.strip().splitlines())


BOTH_SIDES = SideBySide(
    Command("kubectl -n shop get pods -o custom-columns-file=columns"),
    _commands("""
kubectl --context lower-a -n shop get pods -o custom-columns-file=columns
kubectl --context lower-b -n shop get pods -o custom-columns-file=columns
"""),
)
"""The pods of the workload: left in the upper cluster, right in the lower clusters."""

NODES = Scene(
    "Two clusters become two nodes",
    "The engine reads topology.yaml, and creates a node in the upper cluster for each\nlower cluster.",
    _commands("""
grep -v '#' topology.yaml
kubectl wait --for=create node/lower-a --timeout=60s
kubectl wait --for=create node/lower-b --timeout=60s
kubectl wait --for=condition=Ready node --all --timeout=60s
kubectl get nodes -L clusterID
"""),
)

WORKLOAD_SCENE = Scene(
    "Create a workload in the upper cluster",
    "A Deployment with six pods that use a ConfigMap and a Secret, and a Job. The\n"
    "upper scheduler binds the pods to the two virtual nodes.",
    _commands("""
kubectl apply -f workload.yaml
kubectl -n shop wait --for=jsonpath='{.status.readyReplicas}'=6 deploy/web --timeout=60s
kubectl -n shop wait --for=condition=complete job/greet --timeout=60s
"""),
)

LOWERS = Scene(
    "The same pods on both sides",
    "Left the upper cluster: its nodes are the lower clusters. Right these clusters:\n"
    "each runs its share on nodes of its own, with the ConfigMap and the Secret.",
    (BOTH_SIDES, *_commands("kubectl --context lower-b -n shop get configmaps,secrets")),
)

STREAMS = Scene(
    "Logs and exec, through the upper cluster",
    "The sandbox has no containers: exec starts a process on this machine, in a\ndirectory of the lower cluster.",
    _commands("""
kubectl -n shop logs -l app=web --prefix
kubectl -n shop exec deployment/web -- pwd
"""),
)

EDIT = Scene(
    "Plan an edit",
    "edited.yaml adds a node label and a cordon for lower-b. The plan shows what it\nwould change, and why.",
    (Command("grep -A 4 'name: lower-b' edited.yaml"), Command("tensile plan -f edited.yaml", CHANGES)),
)

RELOAD = Scene(
    "Activate the edit",
    "The engine reloads its file. Running pods stay on the cordoned node; new pods go\nto the other node.",
    (
        *_commands("""
cp edited.yaml topology.yaml
kubectl wait --for=jsonpath='{.spec.unschedulable}'=true node/lower-b --timeout=60s
kubectl get nodes -L clusterID,zone
kubectl -n shop scale deployment/web --replicas=8
kubectl -n shop wait --for=jsonpath='{.status.readyReplicas}'=8 deploy/web --timeout=60s
"""),
        BOTH_SIDES,
    ),
)

DELETION = Scene(
    "Delete the workload",
    "Objects deleted in the upper cluster are deleted in the lower clusters. Their\nnamespace stays there.",
    _commands("""
kubectl delete -f workload.yaml --timeout=60s
kubectl --context lower-a -n shop wait --for=delete cm/settings secret/token --timeout=60s
kubectl --context lower-b -n shop wait --for=delete cm/settings secret/token --timeout=60s
kubectl --context lower-a -n shop get pods,configmaps,secrets
kubectl --context lower-b -n shop get pods,configmaps,secrets
tensile plan -f topology.yaml
"""),
)

SUMMARY = """\
1. A file of 20 lines made two clusters nodes of a third one.
2. The upper scheduler spread the pods over both. What they refer to came along.
3. Their status, logs and exec came back, so kubectl worked as with real nodes.
4. The plan said what an edit would change, and the engine did exactly that.
5. What you deleted in the upper cluster is gone from the lower clusters.\
"""
"""What the tour has shown."""

TOUR = (NODES, WORKLOAD_SCENE, LOWERS, STREAMS, EDIT, RELOAD, DELETION)
"""All scenes, in order; at the end the workload is deleted, and the plan has no changes."""
COLUMNS = """\
POD NODE
.metadata.name .spec.nodeName
"""
"""The columns of pods that fit next to each other, as `kubectl get -o custom-columns-file` takes them."""
WORKLOAD = """\
apiVersion: v1
kind: Namespace
metadata:
  name: shop
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  namespace: shop
data:
  colour: green
---
apiVersion: v1
kind: Secret
metadata:
  name: token
  namespace: shop
stringData:
  token: not-a-real-one
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
spec:
  replicas: 6
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:                            # virtual nodes are tainted: their pods need a toleration
      - {key: virtual-kubelet.io/provider, operator: Exists}
      topologySpreadConstraints:              # spread the pods evenly over the lower clusters
      - topologyKey: clusterID
        maxSkew: 1
        whenUnsatisfiable: ScheduleAnyway
        labelSelector:
          matchLabels: {app: web}
      containers:
      - name: web
        image: web:1                          # the sandbox pulls no images
        envFrom:
        - configMapRef: {name: settings}
        volumeMounts:
        - {name: token, mountPath: /token}
      volumes:
      - name: token
        secret: {secretName: token}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: greet
  namespace: shop
spec:
  template:
    metadata:
      annotations:
        sandbox.tensile-kube.io/outcome: succeed   # tells the sandbox how the container ends
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: virtual-kubelet.io/provider, operator: Exists}
      containers:
      - name: greet
        image: greet:1
"""
"""The objects that the tour creates in the upper cluster."""


def edited(topology: str) -> str:
    """Return the sandbox's topology file with a cordon and a label for lower-b."""
    assert topology.count(_LOWER) == 1
    return topology.replace(_LOWER, _LOWER + _EDIT)
