"""What the console does on a node over the operator's own SSH: Ray started and ended there, processes ended."""
