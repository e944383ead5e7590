"""What ends a demo early."""

from tensile.errors import TensileError


class DemoError(TensileError):
    """The tour cannot go on; the text says at which command, and what to do."""
