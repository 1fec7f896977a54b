"""What the controllers keep of each object."""
