"""The console's pages: functions that make a view of a visit, and the actions of their forms."""
