"""`tensile demo`: runs clusters, the engine and a workload, and leads a user through them.

The tour is data (script.py); the other modules run it. The demo never calls the engine: it starts it as a process, as a
user would, and observes it through kubectl alone.
"""

from tensile.sandbox.demo.guide import DemoOptions, demo

__all__ = ["DemoOptions", "demo"]
