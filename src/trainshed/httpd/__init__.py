"""How HTTP reaches handlers: limits, TLS and hosts that may call; the router, requests and answers."""
