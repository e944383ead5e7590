"""Moves pods out of lower clusters: those that no lower node can run, and those of a drained lower cluster."""
