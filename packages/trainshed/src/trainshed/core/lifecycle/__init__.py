"""The life of a job as pure functions: states, events, and what follows from them."""
