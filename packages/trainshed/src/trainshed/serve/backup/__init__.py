"""`trainshed backup` and `trainshed restore`: save and restore a data directory while jobs run (ADR 43)."""
