"""What a layer, a message and a step cost: seconds, bytes, dollars, joules. Pure functions on specs."""
