-- Who has heard of what budget, so that nobody hears twice: (month, what is heard, by whom). The month is that of
-- the budget, as its first nanosecond.
CREATE TABLE budget_notices (
    month   INTEGER NOT NULL,
    subject TEXT NOT NULL,
    target  TEXT NOT NULL,
    PRIMARY KEY (month, subject, target)
) STRICT, WITHOUT ROWID;
