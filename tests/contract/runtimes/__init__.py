"""Runtimes that are really built. These tests need a package index, like the first start of a service."""
