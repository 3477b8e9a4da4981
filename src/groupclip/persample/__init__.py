"""Per-sample gradients of one tensor, kept in the form that is cheapest until their clip factors are known.

``base`` is the contract; ``dense``, ``outer``, ``lookup``, ``convolution`` are the forms that rules book;
``pulled`` leads a gradient from a derived tensor back to a parameter; ``combine`` joins several uses of one tensor,
``apart`` those of parts that have no entry in common.
"""
