"""Finds the best plan for a job, says why it is best, and where nothing fits, why and what would."""
