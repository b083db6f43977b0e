"""Conformance suite of the algorithm port: what every way of proposing trials promises."""
