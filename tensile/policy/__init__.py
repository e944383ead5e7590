"""Scheduling policy: how pods are admitted, where they fit, and when they are moved."""
