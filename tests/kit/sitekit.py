"""One real cluster as a test sees it, and what its objects say: the client of the benches."""

from bench.kit.sites import LIMIT, NODE_LEASES, Manifest, Refused, Site, condition_of, is_ready, is_true, phase_of

__all__ = ["LIMIT", "NODE_LEASES", "Manifest", "Refused", "Site", "condition_of", "is_ready", "is_true", "phase_of"]
