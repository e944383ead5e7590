"""What the pods of a virtual node use of cpu and memory, as a kubelet would tell it.

A lower's metrics API tells rates (`samples`), readers of a kubelet want counters (`counters`); both meet, pod by pod
under the upper names (`picture`), and leave in the two forms that a kubelet has (`exposition`, `summary`).
"""
