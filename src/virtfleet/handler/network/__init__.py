"""The guests' networks on this node."""
