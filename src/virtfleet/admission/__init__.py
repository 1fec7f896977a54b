"""Defaults and validation of every kind. Pure."""
