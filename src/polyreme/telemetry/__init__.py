"""What a run records while it runs, and how those records are read back: events, measured timeline, traces."""
