"""Shells of replicas for people: one-time tickets, links that jobs give out, the page, the WebSocket."""
