"""Text for a terminal: tables, colours, times and sizes; makes texts of others safe to print."""
