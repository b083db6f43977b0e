"""Binds the suite for `python -m trainshed.engines.conformance`, which has pytest collect this file."""

from trainshed.engines.conformance.suite import Conformance


class TestEngine(Conformance):
    pass
