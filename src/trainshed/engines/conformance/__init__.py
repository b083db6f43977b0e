"""The conformance suite of the engine port: shipped, so that whoever writes an engine can run it on
theirs."""
