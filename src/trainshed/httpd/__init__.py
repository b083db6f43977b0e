"""How HTTP reaches the service: limits on heads, bodies and connections; TLS; which hosts may call."""
