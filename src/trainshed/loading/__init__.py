"""Finds what a service loads: modules in one file, so that it starts sooner, and the versions of packages."""
