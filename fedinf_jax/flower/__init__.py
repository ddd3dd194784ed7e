"""Fed-Influence in a Flower federation; needs flwr.

pip install "fedinf_jax[flower]"
"""

import importlib.util

if importlib.util.find_spec("flwr") is None:
  raise ImportError(
    "fedinf_jax.flower needs flwr, which is not installed: pip install"
    ' "fedinf_jax[flower]", or -r requirements-flower.txt in an environment of'
    " its own"
  )

from fedinf_jax.flower.client import client_app as client_app
from fedinf_jax.flower.identity import asked as asked
from fedinf_jax.flower.identity import by_node as by_node
from fedinf_jax.flower.identity import client_id as client_id
from fedinf_jax.flower.identity import mapped as mapped
from fedinf_jax.flower.records import to_record as to_record
from fedinf_jax.flower.strategy import InfluenceStrategy as InfluenceStrategy
