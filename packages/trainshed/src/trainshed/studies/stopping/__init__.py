"""The early-stopping rules: pure functions of learning curves (spec/tuning#early-stopping)."""
