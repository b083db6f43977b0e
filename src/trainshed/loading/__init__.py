"""Finds the modules that a service loads in one file, so that it starts sooner."""
