"""Algorithms in a process of their own: numeric libraries neither weigh on the service nor hold it up."""
