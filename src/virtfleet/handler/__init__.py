"""The node agent, one module per responsibility (virt-handler)."""
