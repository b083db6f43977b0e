"""Loads a service's modules from one file, so that it starts sooner, and finds the versions of packages."""
