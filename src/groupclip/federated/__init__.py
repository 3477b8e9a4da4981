"""Federated rounds whose unit of privacy is the client. No federated framework: it takes updates and gives their private mean."""

from .average import PrivateAverage

__all__ = ["PrivateAverage"]
