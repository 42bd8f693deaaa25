"""How an experiment is run: options, the folder of a run, machine, cost, methods one after the other."""
