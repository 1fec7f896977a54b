"""The kinds that are served: schemas, rules, and those that users add."""
