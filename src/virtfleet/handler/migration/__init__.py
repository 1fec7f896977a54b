"""VMs that move: connections between this node's handler and others, and how far each migration is."""
