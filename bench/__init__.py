"""Benchmarks: each module prints a table and writes JSON; targets are ratios or times within one run."""
