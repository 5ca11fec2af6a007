"""The controller killed at any moment: nothing lost, nothing doubled."""
