"""Executes a plan: starts the workers, connects them, walks their action lists, finds the culprit of a failure."""
