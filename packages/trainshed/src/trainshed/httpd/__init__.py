"""Serves HTTP: limits, TLS, the hosts that may call, the router, requests and responses."""
