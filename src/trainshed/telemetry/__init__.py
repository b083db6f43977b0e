"""Log lines of the service: what they are about, as fields, and how they are written."""
