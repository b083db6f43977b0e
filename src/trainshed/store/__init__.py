"""The durable record behind narrow doors: intake, ledger, reader, logs; SQL adapters beside them."""
