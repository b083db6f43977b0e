"""Shells in replicas, for browsers: tickets, links, the page, and the WebSocket."""
