"""What a written HTML page holds: its tags, and the figures inside it."""

import base64
import re
from html.parser import HTMLParser


class Tags(HTMLParser):
    """Opened tags with their attributes; fails on what is closed wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def figures(html):
    """The SVG text of every figure, in order."""
    return [base64.b64decode(part).decode() for part in re.findall(r"data:image/svg\+xml;base64,([^\"]+)", html)]
