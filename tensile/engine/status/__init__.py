"""The engine's status for people and GitOps tools: the result of each topology, and the state of each lower.

One report is published in three places: ConfigMap NAME-status of the upper cluster, /status of the telemetry server,
and the table of `tensile status`. No decision depends on it.
"""
