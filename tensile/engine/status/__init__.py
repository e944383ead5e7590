"""What the engine says of itself to people and to GitOps tools: what became of the topology, and how each lower is.

One picture, told in three places: ConfigMap NAME-status of the upper cluster, /status of the telemetry server, and the
table of `tensile status`. Nothing is decided from it.
"""
