"""The VMs on this node, each brought in line with its VMI."""
