"""Keeps the durable record in SQLite, by parts for each who writes or reads it, and reads logs."""
