"""Topology to desired to observed to diff to plan to guard to apply: one pipeline for `plan` and `run`.

A *rule* says what should exist for one key; the modules named after the stages turn that into writes; `loop` carries
keys through them. Nothing here knows what a rule is about: pods and nodes are the kubelet package's.
"""
