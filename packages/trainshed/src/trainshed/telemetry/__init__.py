"""Provides log lines with fields, counters and histograms of the service, and the delay of the event loop."""
