"""Notifications over real sockets: an HTTP server for webhooks and an SMTP server for mail."""
