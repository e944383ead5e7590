"""The kubelet API of virtual nodes: requests from the upper cluster, answered from the lower clusters.

`server` accepts a connection, and `auth` identifies the caller and checks its rights. `routes` and `requests` find
the pod that the request means, and `http` answers from the lower apiserver (logs, exec).
"""
