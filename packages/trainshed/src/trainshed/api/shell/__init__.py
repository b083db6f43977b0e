"""Shells of replicas in a browser: tickets for one use, links that jobs show, the page, and the WebSocket."""
