"""A first look: setting1_convex scaled down to 200 clients and 100 rounds.

python -m experiments.run

Two idle cores: under a minute with the report, most of it compilation. Expect
test loss 0.51 and accuracy 0.81; Pearson / Spearman of FIL 0.75 / 0.70 (both),
0.9997 / 0.997 (relu), and without any upload 0.98 / 0.78 (matched).
"""

from fedinf_jax.recipes import quickstart

get_config = quickstart.get_config
