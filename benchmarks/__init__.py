"""Benchmarks: `python -m benchmarks --help`; how to read them is in `README.md`."""
