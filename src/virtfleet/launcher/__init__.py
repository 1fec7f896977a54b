"""What runs beside one VM: the libvirt daemon, its domain, the command socket (virt-launcher)."""
