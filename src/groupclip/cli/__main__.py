"""``python -m groupclip.cli``."""

from . import main

main()
