"""`tensile doctor`: whether each cluster of a topology can be worked with, and what to do where it cannot."""
