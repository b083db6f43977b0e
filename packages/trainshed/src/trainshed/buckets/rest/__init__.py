"""Serves the storage API over HTTP: parsing, methods, uploads, downloads, responses, and the access log."""
