"""Float64 NumPy oracles: one round of each federated algorithm in Python loops, written from the papers' equations."""
