"""`trainshed backup` and `trainshed restore`: a data directory as of one moment, while jobs run, and back
(ADR 43)."""
