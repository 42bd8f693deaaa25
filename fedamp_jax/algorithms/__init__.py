"""The federated methods, one file per family; `registry` lists them."""
