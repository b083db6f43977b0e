"""Serves a replica's own address for gs:// and Google's hosts, and forwards its connections to the service or
to those hosts."""
