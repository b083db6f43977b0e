"""The public surfaces: request to spec or intent, record to view; one handler serves every transport."""
