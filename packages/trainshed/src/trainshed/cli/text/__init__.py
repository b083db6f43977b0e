"""Text for a terminal: tables, colours, times and sizes; makes untrusted texts safe to print."""
