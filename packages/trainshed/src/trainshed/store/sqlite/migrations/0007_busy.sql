-- How many of the processors and GPUs of a use were at work on average; NULL = no replica left a record of it.
ALTER TABLE uses ADD COLUMN busy_cpus REAL;
ALTER TABLE uses ADD COLUMN busy_gpus REAL;
