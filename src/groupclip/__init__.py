"""Differentially private training of PyTorch models with group-wise per-sample gradient clipping."""
