"""The experiments of the FedAMP and PFLEGO papers, and what they share. The scripts in `experiments/` run them."""
