"""Trains a model by a plan: data, optimizer, the worker's loop, and the run folder that everything is written to."""
