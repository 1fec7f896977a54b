"""From a VMI to its launcher Pod: image, resources, devices, volumes, placement. Pure."""
