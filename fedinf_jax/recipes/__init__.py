"""Recipes: a config becomes a task, to train and to resume."""

from fedinf_jax.recipes.building import build as build
from fedinf_jax.recipes.building import check as check
from fedinf_jax.recipes.building import check_kinds as check_kinds
from fedinf_jax.recipes.building import CORRUPTIONS as CORRUPTIONS
from fedinf_jax.recipes.building import exact_rows as exact_rows
from fedinf_jax.recipes.building import names as names
from fedinf_jax.recipes.building import OPTIMIZERS as OPTIMIZERS
from fedinf_jax.recipes.building import scaled as scaled
from fedinf_jax.recipes.problems import GLYPHS as GLYPHS
from fedinf_jax.recipes.problems import NOBODY as NOBODY
from fedinf_jax.recipes.problems import Problem as Problem
from fedinf_jax.recipes.problems import read_femnist as read_femnist
from fedinf_jax.recipes.problems import unowned as unowned
