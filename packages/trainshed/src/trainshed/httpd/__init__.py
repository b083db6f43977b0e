"""HTTP servers: limits, TLS, allowed hosts, the router, requests and responses."""
