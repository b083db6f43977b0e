"""Notifications over real sockets: an HTTP server that takes webhooks, an SMTP server that takes mail."""
