"""The node's own API, through which virt-api reaches the VMs that run here."""
