"""Wraps the kernel's interfaces for processes, control groups, sockets and files. Contains the event loop."""
