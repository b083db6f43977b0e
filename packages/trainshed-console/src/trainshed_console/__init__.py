"""Serves the web console: pages that show responses of the API. The API makes all access decisions."""
