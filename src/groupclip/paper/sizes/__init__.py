"""Does the gap between styles shrink as the model grows? Families of models, what is run on them, and what came out."""
