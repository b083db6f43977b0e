"""The conformance suite tests any engine against the port: the built-in ones and those of other authors."""
