"""Tools for tests: the simulated engine and its faults. Nothing of the service imports this package."""
