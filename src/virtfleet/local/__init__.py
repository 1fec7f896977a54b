"""A Kubernetes on one machine: API server, store, scheduler, workload controllers, node agents."""
