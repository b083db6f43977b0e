"""Composition root: settings, clock, entry points. Builds objects, decides nothing."""
