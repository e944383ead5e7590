"""The kubelet API of virtual nodes: callers from the upper cluster on one side, lower apiservers on the other.

A connection comes in (`listener`, `wire`), is told who calls and whether it may (`authentication`, `authorization`),
which pod that means (`routes`, `target`), and is answered out of the lower cluster (`logs`, `exec`).
"""
