"""Several runs on one page, as one HTML file that needs no network.

python experiments/compare.py RUN RUN ... --out compare.html
"""

from fedamp_jax.runner.compare import main

if __name__ == "__main__":
    main()
