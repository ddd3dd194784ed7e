"""Recipes: one file, one run."""
