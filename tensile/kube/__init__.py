"""Access to real clusters: credentials, HTTP, list and watch, caches, and the life cycle of connections.

Only this package talks to apiservers. Its callers see `cluster.Cluster` and caches.
"""
