"""The HTTP face: requests read, answers written."""
