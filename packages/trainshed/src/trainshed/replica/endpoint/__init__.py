"""Serves the address at which a replica's program reaches gs:// and Google's hosts. Forwards its connections
to the service or to Google's real hosts."""
