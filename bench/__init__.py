"""Benchmarks: every figure beside a floor measured in the same run, because machines are noisy."""
