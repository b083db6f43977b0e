"""A replica's own address for gs:// and Google's hosts: passes connections on to the service or to the real
hosts."""
