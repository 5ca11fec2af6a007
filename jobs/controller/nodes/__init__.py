"""Nodes that are kept free of work: holds, drains, retirement, and who else is there."""
