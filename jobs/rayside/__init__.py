"""The controller's hand in Ray: a process of its own, since every Ray driver dies with Ray's head."""
