"""What influence is for: rankings, rewards, cleansing, and other scores."""

from fedinf_jax.valuation.intervals import bootstrap as bootstrap
from fedinf_jax.valuation.intervals import effects as effects
from fedinf_jax.valuation.rankings import auroc as auroc
from fedinf_jax.valuation.rankings import choose as choose
from fedinf_jax.valuation.rankings import extremes as extremes
from fedinf_jax.valuation.rankings import overlap as overlap
from fedinf_jax.valuation.rankings import precision_at_k as precision_at_k
from fedinf_jax.valuation.rankings import ranking as ranking
from fedinf_jax.valuation.rankings import rewards as rewards
from fedinf_jax.valuation.scores import baselines as baselines
from fedinf_jax.valuation.shapley import GTGShapley as GTGShapley
from fedinf_jax.valuation.trust import expected as expected
from fedinf_jax.valuation.trust import Signs as Signs
from fedinf_jax.valuation.trust import Trust as Trust
