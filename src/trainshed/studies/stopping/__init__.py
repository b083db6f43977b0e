"""When a trial is to be stopped early: the three public rules as pure functions of learning curves
(spec/tuning#early-stopping)."""
