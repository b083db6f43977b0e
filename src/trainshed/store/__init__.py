"""The durable record behind narrow ports: intake, ledger, reader, logs; SQL adapters beside them."""
