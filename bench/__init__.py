"""Benchmarks. Each figure is compared with a floor that is measured in the same run, because machines are
noisy."""
