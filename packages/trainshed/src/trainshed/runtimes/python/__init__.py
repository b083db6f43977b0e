"""Plain Python: an interpreter, pip, and what a training program needs to talk to the service."""
