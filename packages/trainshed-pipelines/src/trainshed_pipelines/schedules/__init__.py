"""Schedules, which start pipeline jobs at times that a cron expression specifies."""
