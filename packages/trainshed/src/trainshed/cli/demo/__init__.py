"""`trainshed demo`: runs a small job through the public API, and starts a service if none runs."""
