"""Composes the service and its commands: settings, clock, entry points. Builds objects, decides nothing."""
