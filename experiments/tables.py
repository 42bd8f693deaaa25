"""The papers' tables from result files: our values beside the paper's.

python experiments/tables.py RESULTS...                            # print
python experiments/tables.py --write docs/results.md RESULTS...    # write the page and its figures
python experiments/tables.py --slim docs/measurements RESULTS...   # keep small copies of result files
"""

from fedamp_jax.experiments.tables import main

if __name__ == "__main__":
    main()
