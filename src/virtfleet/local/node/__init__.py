"""The node agent of the local cluster: runs Pods as real containers and speaks for one node."""
