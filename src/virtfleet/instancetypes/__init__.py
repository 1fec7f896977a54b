"""Instance types and preferences: found for a VM, applied to it, and kept as they were when it took them."""
