"""The manifests that install the engine, rendered from a topology as plain data for an administrator to apply."""
