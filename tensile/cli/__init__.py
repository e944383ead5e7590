"""The command line: arguments become calls of the other packages, results become exit codes.

Nothing is decided here. The modules `*_commands` declare the commands, and `program` what all of them have. Only
`tensile.__main__` imports this package.
"""
