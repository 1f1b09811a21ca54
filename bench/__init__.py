"""Benchmarks: each module prints a table and writes JSON; every target is a ratio or a time within one run."""
