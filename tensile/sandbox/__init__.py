"""Real Kubernetes control planes on loopback: one upper cluster and its lowers, for the demo and for tests.

They run the production binaries as plain processes, since this project depends on the behaviour of real apiservers. No
container runtime is needed, so it works wherever Python does on Linux. `sandbox.Sandbox` is the Python interface,
`commands` the command line. This file imports nothing: the guard that cleans up after a killed start has to start fast.
"""
