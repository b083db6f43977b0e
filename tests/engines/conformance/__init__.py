"""The conformance suite tests an engine against the port: ours, and whatever engine its author runs it on."""
