"""What a node can run, found out by the image that will run it."""

COMMAND = "node-labeller"
"""As which a launcher finds that out, instead of running a VM."""
