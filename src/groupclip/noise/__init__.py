"""Gaussian noise that nobody can foresee."""

from .sources import KEY_GIVEN, InsecureNoise, NoiseSource, SecureNoise

__all__ = ["KEY_GIVEN", "InsecureNoise", "NoiseSource", "SecureNoise"]
