"""Whether a pod fits on the nodes of a lower cluster, by the checks of its kube-scheduler.

Each check reads the pod once and returns a function that judges a node, or nothing if the pod requires nothing that the
check guards. So the cost for thousands of nodes depends only on the pod's real constraints.
"""
