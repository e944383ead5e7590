"""Virtual time for tests: that of the campaigns in memory."""

from bench.kit.virtualtime import clock, in_virtual_time

__all__ = ["clock", "in_virtual_time"]
