"""Tasks beside the event loop, whose failures are logged and healed, and how late the loop is."""
