"""Holds and drains: what follows from what is seen, without a clock or a network."""
