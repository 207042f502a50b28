"""Ways to compute the primitive; each module offers what `engine.Backend` names."""
