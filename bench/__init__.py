"""Benchmarks of the product. `make bench` runs them all; figures stand beside a baseline that ran in the same minute."""
