"""One pipeline for `plan` and `run`: topology, desired, observed, change, step, plan, guard, outcome.

A *rule* decides what should exist for one key. The modules named after the stages turn that into writes, and `loop`
passes keys through them. This package does not know what a rule is about: pods and nodes are the kubelet package's.
"""
