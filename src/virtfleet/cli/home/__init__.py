"""Commands of the cluster on one machine."""
