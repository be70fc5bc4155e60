"""How messages cross a boundary: one file per way, all behind `Sender` and `Receiver`."""
