"""The files that the tour uses: the workload, and the topology after the edit.

Both are written beside the sandbox's topology.yaml under the names that the tour's commands have.
"""

WORKLOAD_FILE = "workload.yaml"
EDITED_FILE = "edited.yaml"
LOG_FILE = "engine.log"
CACHE_FOLDER = "kubectl-cache"
NAMES = (WORKLOAD_FILE, EDITED_FILE, LOG_FILE, CACHE_FOLDER)
"""Everything that the demo puts into the sandbox's directory."""

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
      tolerations:                            # virtual nodes are tainted: what runs there says that it may
      - {key: virtual-kubelet.io/provider, operator: Exists}
      topologySpreadConstraints:              # as many pods on one lower as on the other, as far as it goes
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
        sandbox.tensile-kube.io/outcome: succeed   # the sandbox's way to say how a container ends
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: virtual-kubelet.io/provider, operator: Exists}
      containers:
      - name: greet
        image: greet:1
"""
"""What the tour creates in the upper cluster."""

_LOWER = "- name: lower-b\n"
_EDIT = "  maintenance: cordon\n  node:\n    labels: {zone: north}\n"


def edited(topology: str) -> str:
    """Give the text of the sandbox's topology file with a cordon and a label for lower-b."""
    assert topology.count(_LOWER) == 1
    return topology.replace(_LOWER, _LOWER + _EDIT)
