"""The paper's tables and figures, row by row: settings, runs, results as JSON, and tables drawn from them."""
