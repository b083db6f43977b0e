"""The service's log lines with fields, its counters and histograms; how late the event loop is."""
