"""From the KubeVirt object to installed components, one DaemonSet per pool (virt-operator)."""
