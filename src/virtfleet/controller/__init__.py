"""From VM objects to launcher Pods and back to status (virt-controller)."""
