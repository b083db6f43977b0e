"""Functions for jobs, studies and operations that both training APIs use. They work with records instead of
messages."""
