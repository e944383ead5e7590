"""Rules of the mirrored kinds other than pods: what should exist in the lower clusters, and what in the upper one.

They are pure functions of the caches. Rules that delete what lost its upper object are separate, so that the guard can
hold all such deletions of a lower together.
"""
