"""groupclip inside the tools of others. Each module here needs the package that it is named after, and nothing else loads it."""
