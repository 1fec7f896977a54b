"""From a VMI to its launcher Pod: image, resources, devices, affinity, volumes. Pure."""
