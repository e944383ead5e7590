"""What the sandbox says when it cannot do what was asked.

One family, so that commands print them without a traceback and tests can tell a sandbox that failed from a test that
did.
"""

from tensile.errors import TensileError


class SandboxError(TensileError):
    """The sandbox could not start, stop or reach something; the text says what to do."""


class PortTakenError(SandboxError):
    """Another program took a port between choosing it and listening on it: choose others."""
