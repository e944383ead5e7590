"""The benchmarks' client for one real cluster, and helpers to read its objects."""

from bench.kit.sites import LIMIT, NODE_LEASES, Manifest, Refused, Site, condition_of, is_ready, is_true, phase_of

__all__ = ["LIMIT", "NODE_LEASES", "Manifest", "Refused", "Site", "condition_of", "is_ready", "is_true", "phase_of"]
