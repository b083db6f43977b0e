"""Conformance tests of the algorithm port, which all search algorithms must pass."""
