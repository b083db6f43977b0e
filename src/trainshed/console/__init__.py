"""The web console: pages over the methods and records of the API, which decide everything."""
