"""``python -m groupclip.cli``."""

from groupclip_command import main

main()
