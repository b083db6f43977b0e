"""Wraps the kernel's interfaces: processes, control groups, sockets, files; provides the event loop."""
