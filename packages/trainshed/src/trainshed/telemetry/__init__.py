"""The service's log lines with fields, its counters and histograms."""
