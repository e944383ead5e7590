"""Pods that cannot run in the lower cluster which they were bound to, and where they could."""
