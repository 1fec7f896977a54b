"""The launchers' Pods on this node: their files, processes and control groups, none of which is trusted."""
