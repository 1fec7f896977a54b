"""What users write: the kubevirt.io/v1 kinds as typed views, quantities, selectors, names of labels. Pure."""
