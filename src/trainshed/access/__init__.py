"""Who may do what: principals, roles, the one permission table, redaction of secrets."""
