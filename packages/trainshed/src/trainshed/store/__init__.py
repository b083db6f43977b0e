"""Defines and implements the durable record behind narrow ports: intake, ledger, reader, logs; in SQLite."""
