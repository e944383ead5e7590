"""Whether a pod fits on a lower cluster's real nodes, by the checks that its kube-scheduler makes.

Each check is a file. It looks at the pod once, and gives a function that judges a node, or nothing where the pod asks
for nothing that it guards: thousands of nodes then cost only what the pod really constrains.
"""
