"""One upper Kubernetes cluster, several lower clusters as its nodes, one topology file."""

__version__ = "0.1.0"
