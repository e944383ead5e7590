"""Real Kubernetes control planes on loopback: one upper cluster and its lowers, for the demo and for the tests.

They are the programs that production runs, as plain processes, because what this project must get right is how a real
apiserver answers; a container runtime is not needed, so it works wherever Python does on Linux. `environment.Sandbox`
is the way in from Python, `commands` the one from the command line. Nothing is imported here: the guard that cleans
up after a killed start must itself start at once.
"""
