"""Numerical routines that strategies are made of."""
