"""The best known results of private training on two CPU cores, and what groupclip reaches: ``groupclip reproduce records``."""
