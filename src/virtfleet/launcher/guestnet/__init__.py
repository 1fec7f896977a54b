"""What the guest is told of its networks."""
