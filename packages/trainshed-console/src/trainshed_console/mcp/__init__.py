"""Serves agents: tools over the API's own methods, by the Model Context Protocol."""
