"""Commands that read clusters and explain them to people: `tensile explain`, `simulate` and `doctor`."""
