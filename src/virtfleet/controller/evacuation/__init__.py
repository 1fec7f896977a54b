"""VMs that leave their node: because a drain evicts their Pods, or because of a taint."""
