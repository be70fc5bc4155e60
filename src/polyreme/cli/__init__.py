"""The `polyreme` command: the one place where the plan half and the run half meet."""
