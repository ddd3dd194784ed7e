"""Runs with a folder of their own: train, evaluate, save and resume."""
