"""Serves a replica's own address for gs:// and Google's hosts; connects it to the service or those hosts."""
