"""Private parameters: every use is seen, and a group's gradients are clipped where autograd says that it is complete."""
