"""The manifests that install the engine, rendered from a topology; and topologies imported from tensile-kube."""
