"""Tools for AI agents over the Model Context Protocol. The tools call the API's own methods."""
