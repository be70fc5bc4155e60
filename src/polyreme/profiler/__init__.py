"""Times a model's layers on the devices at hand, through the same code that trains them."""
