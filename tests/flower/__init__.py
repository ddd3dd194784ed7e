"""Tests of what needs flwr."""
