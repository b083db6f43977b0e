"""Text for a terminal: tables, colours, times and sizes, and untrusted texts that are made safe to print."""
