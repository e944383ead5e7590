"""The kubelet API of virtual nodes: requests from the upper cluster, answered from the lower clusters.

`server` accepts a connection, and `auth` identifies the caller and checks its rights. `routes` and `pods` find the pod
that the request means, and `lower_request` answers from the lower apiserver (logs, exec).
"""
