"""From a VMI to a libvirt domain document, one small builder per part. Pure."""
