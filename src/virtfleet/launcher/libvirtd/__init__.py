"""The libvirt daemons of one VM and the way to them."""
