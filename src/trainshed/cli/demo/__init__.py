"""`trainshed demo`: a small job through the public API, with a service of its own where none runs."""
