"""Why a replica stopped or an attempt failed, and what follows: one ordered table (spec/failures#rules)."""
