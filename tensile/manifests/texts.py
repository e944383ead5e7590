"""What is text and no data because people go on from it: a storage class, and a file for the scheduler's host."""

from tensile.manifests.setup import Setup
from tensile.manifests.turning import EXTENDER

STORAGE_CLASS = """\
# A storage class whose volumes are made in the lower cluster of the pod that uses them.
#
# The upper scheduler chooses the virtual node first (WaitForFirstConsumer; with Immediate no pod would ever start),
# then the engine has the claim made in the lower cluster behind it. By `storageClasses` of the topology each lower maps
# the name of this class to one of its own; a lower that does not, needs a class of the same name.
#
# With the policy Retain instead, the claim below and its data stay when the claim above is deleted.
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: tensile
provisioner: tensile-kube.io/lower
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
allowVolumeExpansion: true
"""

_SCHEDULER = """\
# Configuration of the upper cluster's kube-scheduler, so that it asks the engine where in the lower clusters a pod fits
# (extender.enabled in the topology file). Not an object of the API: a file on the scheduler's host, for its flag
# --config. Merge `extenders` into the one that you have. docs/extender.md says how, and what it costs.
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf  # with --config, the flag --kubeconfig counts no more
leaderElection:
  leaderElect: true
extenders:
# CLUSTER-IP: kubectl -n {namespace} get service {service} -o jsonpath={{.spec.clusterIP}}
# As an address, since a scheduler on its host's network does not ask the cluster's DNS; one of IPv6 in brackets.
- urlPrefix: https://CLUSTER-IP:{port}
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt  # who has to go for a pod of higher priority, so that a real node has room
  weight: 5  # 1 is as much as one of the scheduler's own scores; 5 outweighs how full virtual nodes look
  enableHTTPS: true
  tlsConfig:
    insecure: true  # with kubelet.tlsCertFile in the topology: caFile, who signed it; it has to name the host above
    certFile: /etc/kubernetes/pki/scheduler-extender.crt  # of the user system:kube-scheduler,
    keyFile: /etc/kubernetes/pki/scheduler-extender.key  # signed by the authority in kubelet.clientCAFile
  httpTimeout: 2s  # an answer takes milliseconds, but for an engine busy with a burst; all scheduling waits for it
  nodeCacheCapable: true  # required: nodes are sent as names
  ignorable: true  # without the engine pods are scheduled as if there were no extender
  # No managedResources: every pod is asked about. No bindVerb: the scheduler binds by itself.
"""

_DISABLED = "# For later: this topology does not enable the extender, so nobody would answer.\n"


def scheduler(setup: Setup) -> str:
    """Give the configuration of an upper scheduler that asks the extender."""
    text = _SCHEDULER if setup.topology.extender.enabled else _DISABLED + _SCHEDULER
    return text.format(namespace=setup.namespace, service=EXTENDER, port=setup.topology.extender.port)
