"""Wraps what is close to the kernel: processes, control groups, sockets, files, the event loop."""
