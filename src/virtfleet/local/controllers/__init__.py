"""Controllers that a Kubernetes has by itself: scheduler, workloads, endpoints, garbage, namespaces, nodes, volumes."""
