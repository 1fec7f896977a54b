"""VirtFleet: virtual machines on Kubernetes for mixed fleets of nodes."""

__version__ = "0.2.0"
