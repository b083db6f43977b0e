"""Gives an admitted gang its slots and reports what it sees: port, one folder per engine."""
