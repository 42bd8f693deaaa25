"""What is run: each experiment is a record, by name in `catalogue.EXPERIMENTS`."""
