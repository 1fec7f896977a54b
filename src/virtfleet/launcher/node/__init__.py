"""What a node can run, found out by the image that will run it."""
