"""Predicts a step by replaying the very action lists that the runtime executes."""
