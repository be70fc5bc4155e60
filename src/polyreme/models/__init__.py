"""Model blocks in torch, built by layer range with the parameter names and shapes that `layout` owns."""
