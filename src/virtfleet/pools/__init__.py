"""Which pool a VMI belongs to, which handler serves a node, and the affinity algebra behind both. Pure."""
