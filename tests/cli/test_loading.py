"""What is told while images are decoded: enough to see that it goes on, and nothing where it takes no time."""

import io

import pytest
from rich.console import Console

from groupclip.cli.loading import Loading


def told(images, *, terminal=False):
    """Everything that is written while so many images are decoded."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with Loading(console) as loading:
        for done in range(1, images + 1):
            loading(done, images)
        loading.remarks(("2 [left] out",))
    return console.file.getvalue()


def test_few_images_take_no_line_of_a_log():
    assert told(999) == "2 [left] out\n"


def test_many_are_told_by_tenths():
    lines = told(2000).splitlines()
    assert lines[0] == "decoding images, 2,000 images"
    assert lines[1:-1] == [f"  {200 * n:,} of 2,000 images" for n in range(1, 11)]


def test_a_terminal_has_a_bar():
    shown = told(40, terminal=True)
    assert "decoding images" in shown and "40/40" in shown


def test_the_bar_ends_with_an_error():
    """Or else it would go on over the message."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(ValueError, match="without"), Loading(console) as loading:
        loading(1, 40)
        raise ValueError("a folder without an image")
    assert console.file.getvalue().endswith("\x1b[?25h")  # the cursor is shown again, which is the last thing a bar does
