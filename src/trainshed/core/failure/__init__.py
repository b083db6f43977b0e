"""Why a replica stopped, or an attempt came to nothing, and what follows: one ordered table as data
(spec/failures#rules)."""
