"""Where the processes of a local run find each other."""

LOOPBACK = "127.0.0.1"
