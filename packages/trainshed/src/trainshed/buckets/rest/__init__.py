"""Serves the storage API over HTTP: parsing, methods, uploads, downloads, and responses."""
