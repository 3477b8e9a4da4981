"""What dp-accounting logs, through absl, and nobody needs to read."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the warning that an order didn't converge: that order is dropped, which only loosens the bound."""
    logger = logging.getLogger("absl")

    def drop(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in str(record.msg)

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
