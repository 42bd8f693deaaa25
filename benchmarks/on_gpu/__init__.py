"""The parts of `benchmarks/gpu.py`, one file each; `record.py` says how they are run and what is kept."""
