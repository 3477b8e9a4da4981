"""Several processes that train one model: who they are, what they must agree on, and how their sums become one."""
