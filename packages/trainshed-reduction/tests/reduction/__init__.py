"""Tests of the Reduction Server with real processes: reducers, workers, and programs that use PyTorch."""
