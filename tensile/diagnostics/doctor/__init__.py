"""`tensile doctor`: checks every cluster of a topology, and suggests fixes."""
