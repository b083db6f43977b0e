"""Gives an admitted gang its slots and reports their events: the port, and one folder per engine."""
