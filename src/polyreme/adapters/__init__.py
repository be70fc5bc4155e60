"""Framework adapters: one file per framework behind `StageModule`, all that the executor knows of a stage."""
