"""Composes the service and its commands: settings, clock, entry points. This package builds objects and makes
no other decisions."""
