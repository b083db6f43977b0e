"""States, events and what follows from them: the life of a job as pure functions."""
