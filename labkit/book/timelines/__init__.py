"""Pictures over time: of runs, of schedules, of who waits for whom."""
