"""The command line: arguments become calls of the other packages, results become exit codes.

Nothing is decided here. Only `tensile.__main__` imports this package.
"""
