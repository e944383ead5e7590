"""The rules for pods of virtual nodes: lower pods are created, updated and deleted; status and events go upwards."""
