"""Tests of fedinf_jax."""
