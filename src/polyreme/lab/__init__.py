"""A cluster of unlike devices on one Linux machine: nodes are network namespaces, devices are CPU and memory limits."""
