"""The scheduler extender: filter, score and preemption against the nodes of lower clusters."""
