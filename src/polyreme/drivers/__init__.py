"""Device drivers: one file per device family behind `DeviceDriver`; the only code that knows how a device runs work."""
