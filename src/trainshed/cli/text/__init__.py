"""Text on a terminal: tables, colours, moments and sizes, and what others wrote made printable."""
