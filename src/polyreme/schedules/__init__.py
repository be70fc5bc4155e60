"""Schedules as data: what every worker does in which order, as lists that print, parse, validate, replay and run."""
