"""One VM on a machine without a cluster."""
