"""Run one upper Kubernetes cluster with several lower clusters as its nodes, from one topology file."""

__version__ = "0.1.0"
