"""Composes the service and its commands from settings, clock and entry points. Makes no decisions."""
