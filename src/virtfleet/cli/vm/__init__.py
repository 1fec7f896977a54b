"""Commands about one VM."""
