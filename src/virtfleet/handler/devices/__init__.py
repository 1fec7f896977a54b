"""Devices of the node, and how VMs get them."""
