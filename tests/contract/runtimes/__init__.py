"""Runtimes that are really built: needs a package index, as a first start of the service does."""
