"""What QEMU's domains, daemon and process look like, shared by the hypervisors that QEMU is the VMM of."""
