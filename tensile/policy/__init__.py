"""Who may run where: what is decided about pods beyond mirroring them."""
