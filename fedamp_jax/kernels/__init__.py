"""Arithmetic by platform: convolutions, pooling, products of many small matrices, distances."""
