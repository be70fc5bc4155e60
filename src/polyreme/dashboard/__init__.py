"""What a person sees of a run: a run folder as plain data, the figures drawn from it, one self-contained page."""
