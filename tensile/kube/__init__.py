"""The way to real clusters: credentials, HTTP, list and watch, and their life-cycle.

The only package that speaks to apiservers; everything above it sees `cluster.Cluster` and caches.
"""
