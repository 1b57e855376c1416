"""What a model is: where it comes from, what it takes and gives, and how it is run."""
