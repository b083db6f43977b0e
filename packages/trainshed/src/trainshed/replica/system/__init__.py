"""Wraps the kernel's interfaces for processes, control groups, sockets and files; has the event loop."""
