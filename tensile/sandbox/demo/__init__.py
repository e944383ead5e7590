"""`tensile demo`: clusters, engine and a workload for as long as it takes to look at them.

The tour is data (tour.py, files.py); the other modules carry it out. Nothing here reaches into the engine: it runs as
a process of its own, started as a person would start it, and is seen through kubectl alone.
"""

from tensile.sandbox.demo.guide import Wishes, demo

__all__ = ["Wishes", "demo"]
