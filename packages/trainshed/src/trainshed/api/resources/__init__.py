"""Functions that the APIs share for jobs, studies and operations, with records instead of messages."""
