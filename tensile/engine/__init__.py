"""The running engine: it wires all parts, follows the topology and serves its ports; also `plan` and `apply`."""
