"""Gives an admitted gang its slots and reports their events. Contains the port and one folder per engine."""
