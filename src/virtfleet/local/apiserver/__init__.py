"""The API server of the local cluster: Kubernetes' API over a durable store, as kubectl and client-go know it."""
