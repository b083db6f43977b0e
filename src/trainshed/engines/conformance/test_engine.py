"""The suite where `python -m trainshed.engines.conformance` has pytest find it."""

from trainshed.engines.conformance.suite import Conformance


class TestEngine(Conformance):
    pass
