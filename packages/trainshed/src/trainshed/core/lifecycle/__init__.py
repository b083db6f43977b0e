"""The life of a job as pure functions: states, events and their consequences."""
