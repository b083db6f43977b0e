"""Benchmarks. Every figure is compared with a floor measured in the same run, because machines are noisy."""
