"""What is counted and what is written down."""
