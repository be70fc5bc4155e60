"""Devices and links with their figures, and a cluster file resolved against them."""
