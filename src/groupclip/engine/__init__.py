"""The one stateful object: a model whose gradients come out clipped, and an optimizer whose steps are private."""
