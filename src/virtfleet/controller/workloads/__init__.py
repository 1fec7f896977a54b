"""Launchers of running VMs that are not what they would be now: how many there are, and how they get new ones."""
