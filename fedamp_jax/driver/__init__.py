"""Rounds, evaluation, and the loop around them. Nothing here knows any algorithm."""
