"""Benchmarks of the product. `make bench` runs them; figures stand beside a baseline of the same minute."""
