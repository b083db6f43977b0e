"""The conformance suite tests an engine against the port. It is shipped so that authors of engines can run it
on theirs."""
