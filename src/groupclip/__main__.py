"""``python -m groupclip``, and ``torchrun -m groupclip``."""

from groupclip_command import main

main()
