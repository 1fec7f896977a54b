"""virt-operator: from the KubeVirt object to installed components, one virt-handler DaemonSet per pool."""
